"""The project's own tests that need a GPU: everywhere else they leave themselves out."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from .setting import Case, Row, Setting

__all__ = ["TITLE", "cases", "faults", "table"]

TITLE = "The tests that need a GPU"

_FILES = {
    "hook": ("tests/hooks/test_on_cuda.py",),
    "one pass": ("tests/hooks/test_one_pass.py", "-k", "on_a_gpu or interpreter"),
    "random-LTD": ("tests/hooks/test_random_ltd_on_cuda.py",),
}


def cases(setting: Setting) -> Mapping[str, Case]:
    """A file each; DeepSpeed's op is compiled in the last."""
    return {name: partial(_tested, setting, name) for name in _FILES}


def _tested(setting: Setting, name: str) -> Row:
    # a torch that is newer or older than the one in constraints.txt warns of other things
    options = ("-q", "-W", "default", "-p", "no:cacheprovider", "--tb=short", "--no-header")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *_FILES[name]],
        capture_output=True,
        text=True,
        timeout=max(10.0, setting.seconds_left()),
        check=False,
    )
    print(ran.stdout)
    if ran.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with exit code {ran.returncode}: {(ran.stderr or ran.stdout)[-500:]}")
    last = ran.stdout.strip().splitlines()[-1]
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    failures = [line[len("FAILED ") :] for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
    return {**counts, "failures": failures, "judged": setting.device == "cuda"}


def table(rows: Mapping[str, Row]) -> str:
    """A line for each file."""
    lines = []
    for case, row in rows.items():
        counts = ", ".join(f"{row[key]} {key}" for key in ("passed", "failed", "skipped", "error") if row.get(key))
        lines.append(f"{case:12} {counts}")
    return "\n".join(lines)


def faults(rows: Mapping[str, Row]) -> list[str]:
    """What failed; and a GPU that the tests did not see."""
    failed = [f"{case}: {failure}" for case, row in rows.items() for failure in row["failures"]]
    errors = [f"{case}: {row['error']} errors, see the log" for case, row in rows.items() if row.get("error")]
    unseen = [f"{case}: no test ran" for case, row in rows.items() if row["judged"] and not row.get("passed")]
    return [*failed, *errors, *unseen]
