"""The project's own tests that need a GPU: everywhere else they leave themselves out."""

from __future__ import annotations

import os
import re
import sys

from .case import Row, Setting
from .running import run_child

__all__ = ["tested"]

_TESTS = {
    "plain torch": ("tests/hooks/test_on_cuda.py", "-k", "not deepspeed"),
    "ZeRO": ("tests/hooks/test_on_cuda.py", "-k", "deepspeed"),
    "the pass": ("tests/hooks/test_one_pass.py", "-k", "on_a_gpu or interpreter"),
    "random-LTD": ("tests/hooks/test_random_ltd_on_cuda.py",),
}


def tested(setting: Setting, name: str) -> Row:
    """Without the suite's own configuration and conftest: those need more than the hooks do, and other versions of
    torch warn of other things."""
    options = ("-q", "-c", os.devnull, "--rootdir=.", "--noconftest", "-p", "no:cacheprovider", "--tb=short")
    exit_code, printed = run_child(
        [sys.executable, "-m", "pytest", *options, *_TESTS[name]],
        env=os.environ | ({} if setting.on_cuda else {"REHEARSE_ON_CPU": "1"}),
    )
    if exit_code not in (0, 1):
        raise RuntimeError(f"pytest ended with exit code {exit_code}, see the log")
    last = printed.strip().splitlines()[-1]
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    wrong = [line.removeprefix("FAILED ") for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if setting.on_cuda and not counts.get("passed"):
        wrong.append("no test ran")
    return {**counts, "wrong": wrong}
