"""Which tests run which lines, and how long each takes: measured once, in a process of its own."""

from __future__ import annotations

import json
import sys
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
    """Each test that passed, by its pytest id, and how long it took."""

    by_line: dict[str, dict[int, list[str]]]
    """Path -> line -> tests that run it."""

    @classmethod
    def read(cls, file: Path) -> Covered:
        """From the file that this module writes as a program."""
        told = json.loads(file.read_text(encoding="utf-8"))
        by_line = {path: {int(n): tests for n, tests in lines.items()} for path, lines in told["by_line"].items()}
        return cls(seconds=told["seconds"], by_line=by_line)

    def tests_for(self, path: str, line: int, *, at_import: bool) -> list[str]:
        """Tests that run the line, the quickest first; of a line that runs at import, all that run any of the module.

        Where none does (a module of constants, code that only other processes run): all tests of the area.
        """
        lines = self.by_line.get(path, {})
        tests = {t for tests in lines.values() for t in tests} if at_import else set(lines.get(line, ()))
        return sorted(tests or self.seconds, key=lambda test: self.seconds.get(test, 0.0))


class _Recorder:
    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._measured.switch_context(item.nodeid)
        result = yield
        self._measured.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration


def measure(root: Path, code: Sequence[str], tests: Sequence[str], file: Path) -> int:
    """Runs the tests below `root` and writes what they cover to `file`; pytest's exit code."""
    measured = coverage.Coverage(include=[str(root / path) for path in code], data_file=None)
    recorder = _Recorder(measured)
    measured.start()
    code_of_exit = pytest.main(["-q", "-m", "not full and not soak", "--durations=0", *tests], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    by_line: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        lines = {n: [t for t in told if t] for n, told in data.contexts_by_lineno(path).items()}
        by_line[Path(path).relative_to(root).as_posix()] = {n: tests for n, tests in lines.items() if tests}
    file.write_text(json.dumps({"seconds": recorder.seconds, "by_line": by_line}), encoding="utf-8")
    return int(code_of_exit)


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    sys.exit(measure(Path.cwd().resolve(), told["code"], told["tests"], Path(told["file"])))
