"""One change tried: the changed file in a copy of the tree, the tests that run it, and whether one of them fails."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.mutants.changes import Change
from tools.mutants.covering import Covered

__all__ = ["Copy", "try_all"]

_SPARE_S = 20.0
"""A change may slow its tests down; beyond this and five times their own time it has hung, and is noticed."""

_WAITS_FACTOR = 3
"""Those are seconds of the processor, which a busy machine does not lengthen. One that waits for good takes none: it
has hung after so many times as long by the clock."""

_FIRST = 40
"""Tests that are run first, the quickest: they notice most changes, and few files of tests are to be read for them."""

_REST_S = 20.0
"""Of the other tests those that together take no longer; more would only find that more is noticed."""


def try_all(changes: Sequence[Change], covered: Covered, root: Path, folder: Path) -> list[tuple[Change, bool]]:
    """Each change, and whether it survives; in a copy of the tree at `root`, below `folder`.

    RuntimeError when the tests fail in the copy without any change: then each change would look noticed.
    """
    copy = Copy(root, folder)
    for name in covered.modules:  # once, so that no change waits for them
        with contextlib.suppress(Exception):
            __import__(name)
    parts = [_in_parts(covered, covered.tests_for(c.path, c.line, at_import=c.at_import)) for c in changes]
    first = list(dict.fromkeys(test for part in parts for test in part[0][:10]))  # that they can run there at all
    if not any(copy.passes(first, timeout_s=_timeout_s(covered, first), keep_bytecode=True) for _ in range(2)):
        raise RuntimeError(f"the tests fail in {folder} without any change")
    found = []
    for change, tests in zip(changes, parts, strict=True):
        began_s = time.monotonic()
        survived = copy.survives(change, [(part, _timeout_s(covered, part)) for part in tests if part])
        word = "SURVIVED" if survived else "noticed "
        took_s = time.monotonic() - began_s
        print(f"{word} {change.name} (line {change.line}, {took_s:.1f} s)", file=sys.stderr, flush=True)
        found.append((change, survived))
    return found


def _in_parts(covered: Covered, tests: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tests to run first, and those to run where none of them notices."""
    total_s, rest = 0.0, []
    for test in tests[_FIRST:]:
        total_s += covered.seconds[test]
        if total_s > _REST_S:
            break
        rest.append(test)
    return list(tests[:_FIRST]), rest


def _timeout_s(covered: Covered, tests: Sequence[str]) -> float:
    return _SPARE_S + 5 * sum(covered.seconds[t] for t in tests)


def _tracked(root: Path) -> list[str]:
    """The files that git tracks or would, below the root."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(asked, cwd=root, capture_output=True, check=True).stdout.decode()
    return [name for name in told.split("\0") if name]


class Copy:
    """A copy of the tree in which files are changed and put back."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder.resolve()
        for name in _tracked(root):
            if (root / name).is_file():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target)

    def environment(self) -> dict[str, str]:
        """In which every Python that is started imports the copy; none writes bytecode, which a change makes stale."""
        return dict(os.environ, PYTHONPATH=str(self.folder), PYTHONDONTWRITEBYTECODE="1", LEAVE_NOTHING_OUT="1")

    def survives(self, change: Change, parts: Sequence[tuple[Sequence[str], float]]) -> bool:
        """Whether each part, tests and their timeout in s, passes with the change; stops at the first that does not."""
        file = self.folder / change.path
        source = file.read_bytes()
        file.write_bytes(change.applied(source))
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        try:
            return all(self.passes(tests, timeout_s=timeout_s) for tests, timeout_s in parts)
        finally:
            file.write_bytes(source)

    def passes(self, tests: Sequence[str], *, timeout_s: float, keep_bytecode: bool = False) -> bool:
        """Whether the tests pass on the copy as it is, within the timeout in seconds of the processor.

        `keep_bytecode` for the unchanged copy: then nothing but the changed file is compiled again for each change.
        """
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(timeout_s), math.ceil(timeout_s) + 1))
            self._run(tests, keep_bytecode=keep_bytecode)
        end_s = time.monotonic() + _WAITS_FACTOR * timeout_s
        try:
            while time.monotonic() < end_s:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status) == 0
                time.sleep(0.02)
            return False
        finally:
            _kill_group(child)

    def _run(self, tests: Sequence[str], *, keep_bytecode: bool) -> None:
        """In the child: pytest over the copy; does not return."""
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ.update(self.environment())
            sys.dont_write_bytecode = not keep_bytecode
            sys.path[:] = [str(self.folder), *(p for p in sys.path if p not in ("", str(Path.cwd())))]
            for name in [n for n in sys.modules if n.split(".")[0] in ("tools", "tests", "sentinel", "trainer_hooks")]:
                del sys.modules[name]
            said = os.open(self.folder / ".mutants-said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            # Tests find the tree by pytest's root; one that fails ends the run: the change is noticed.
            warm = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # what was imported once for all
            plain = ["-x", "-q", "-p", "no:cacheprovider", "--rootdir", str(self.folder)]
            code = int(pytest.main([*plain, *warm, *tests]))
        except BaseException:  # noqa: BLE001 - the child ends here, and must say why
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def _kill_group(child: int) -> None:
    """Ends a child that hangs, and whatever a test that failed has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
