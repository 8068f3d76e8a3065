"""Which tests run which lines, and how long each takes: measured once, in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

__all__ = ["Covered", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """What one run of an area's tests has shown."""

    seconds: dict[str, float]
    """Each test that passed, by its pytest id, and how long it took the processor with its setup; where it waited more
    than it worked, a tenth of that by the clock. A busy machine lengthens the clock's seconds, and not these."""

    failed: list[str]
    """Tests that fail on the unchanged code: they can notice nothing, and are left out."""

    by_line: dict[str, dict[int, list[str]]]
    """Path -> line -> tests that run it."""

    modules: list[str]
    """What the tests have imported of other projects."""

    @classmethod
    def read(cls, file: Path) -> Covered:
        """From the file that this module writes as a program."""
        told = json.loads(file.read_text(encoding="utf-8"))
        by_line = {path: {int(n): tests for n, tests in lines.items()} for path, lines in told["by_line"].items()}
        return cls(seconds=told["seconds"], failed=told["failed"], by_line=by_line, modules=told["modules"])

    def of(self, tests: Sequence[str]) -> Covered:
        """What the tests below these files and folders have shown."""
        below = tuple(tests)
        return Covered(
            seconds={t: s for t, s in self.seconds.items() if t.startswith(below)},
            failed=[t for t in self.failed if t.startswith(below)],
            by_line={
                path: {n: [t for t in lines[n] if t.startswith(below)] for n in lines}
                for path, lines in self.by_line.items()
            },
            modules=self.modules,
        )

    def tests_for(self, path: str, line: int, *, at_import: bool) -> list[str]:
        """Tests that run the line, the quickest first; of a line that runs at import, all that run any of the module.

        Where none does (a module of constants, code that only other processes run): all tests of the area.
        """
        lines = self.by_line.get(path, {})
        tests = {t for tests in lines.values() for t in tests} if at_import else set(lines.get(line, ()))
        return sorted(tests & self.seconds.keys() or self.seconds, key=lambda test: self.seconds[test])


_OF_A_WAIT = 0.1


def _worked_s() -> float:
    """Seconds of the processor so far, of this process and of those that it has started and seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Recorder:
    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._measured.switch_context(item.nodeid)
        worked_s, clock_s = _worked_s(), time.monotonic()
        result = yield
        self._measured.switch_context("")
        if item.nodeid in self.seconds:
            self.seconds[item.nodeid] = max(_worked_s() - worked_s, _OF_A_WAIT * (time.monotonic() - clock_s))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.passed:
            self.seconds[report.nodeid] = 0.0
        else:
            self.seconds.pop(report.nodeid, None)


def measure(root: Path, code: Sequence[str], tests: Sequence[str], file: Path) -> int:
    """Runs the tests below `root` and writes what they cover to `file`; pytest's exit code."""
    measured = coverage.Coverage(include=[str(root / path) for path in code], data_file=None)
    recorder = _Recorder(measured)
    measured.start()
    code_of_exit = pytest.main(["-q", "-m", "not full and not soak", *tests], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    by_line: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        lines = {n: [t for t in run_by if t] for n, run_by in data.contexts_by_lineno(path).items()}
        by_line[Path(path).relative_to(root).as_posix()] = {n: tests for n, tests in lines.items() if tests}
    seconds = {t: s for t, s in recorder.seconds.items() if t not in recorder.failed}
    modules = [n for n, m in list(sys.modules.items()) if "site-packages" in (getattr(m, "__file__", None) or "")]
    told = {"seconds": seconds, "failed": sorted(recorder.failed), "by_line": by_line, "modules": modules}
    file.write_text(json.dumps(told), encoding="utf-8")
    return int(code_of_exit)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    sys.exit(measure(Path.cwd().resolve(), told["code"], told["tests"], Path(told["file"])))
