"""One change tried: the changed file in a copy of the tree, the tests that run it, and whether one of them fails."""

from __future__ import annotations

import os
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

_WARM = ("hypothesis", "numpy", "scipy.stats", "msgspec", "pyarrow", "psutil", "typer", "tree_sitter_bash")
"""Imported once, so that no change waits for them; nothing of the project's own."""


_SPARE_S = 20.0
"""A change may slow its tests down; beyond this and five times their own time it has hung, and is noticed."""


def try_all(changes: Sequence[Change], covered: Covered, root: Path, folder: Path) -> list[tuple[Change, bool]]:
    """Each change, and whether it survives; in a copy of the tree at `root`, below `folder`.

    RuntimeError when the tests fail in the copy without any change: then each change would look noticed.
    """
    copy = Copy(root, folder)
    if not copy.passes(list(covered.seconds), timeout_s=_SPARE_S + 5 * sum(covered.seconds.values())):
        raise RuntimeError(f"the tests fail in {folder} without any change")
    found = []
    for change in changes:
        tests = covered.tests_for(change.path, change.line, at_import=change.at_import)
        timeout_s = _SPARE_S + 5 * sum(covered.seconds.get(t, 0.0) for t in tests)
        survived = copy.survives(change, tests, timeout_s=timeout_s)
        word = "SURVIVED" if survived else "noticed "
        print(f"{word} {change.name} (line {change.line})", file=sys.stderr, flush=True)
        found.append((change, survived))
    return found


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
        """In which every Python that is started imports the copy, and writes no bytecode that could be stale."""
        return dict(os.environ, PYTHONPATH=str(self.folder), PYTHONDONTWRITEBYTECODE="1", LEAVE_NOTHING_OUT="1")

    def survives(self, change: Change, tests: Sequence[str], *, timeout_s: float) -> bool:
        """Whether the tests pass with the change. A test that takes longer than the timeout has failed."""
        file = self.folder / change.path
        source = file.read_bytes()
        file.write_bytes(change.applied(source))
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        try:
            return self.passes(tests, timeout_s=timeout_s)
        finally:
            file.write_bytes(source)

    def passes(self, tests: Sequence[str], *, timeout_s: float) -> bool:
        """Whether the tests pass on the copy as it is, within the timeout."""
        for name in _WARM:
            __import__(name)
        child = os.fork()
        if child == 0:
            self._run(tests)
        end = time.monotonic() + timeout_s
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status) == 0
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return False
            time.sleep(0.02)

    def _run(self, tests: Sequence[str]) -> None:
        """In the child: pytest over the copy; does not return."""
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            os.environ.update(self.environment())
            sys.dont_write_bytecode = True
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
