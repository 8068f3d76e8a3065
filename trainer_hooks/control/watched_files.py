"""Files of the state folder by which a running training is asked for something, watched by a thread of rank 0.

A step reads `levels`, an attribute: a filesystem that hangs blocks the thread alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from trainer_hooks.errors import Guard
from trainer_hooks.regular_files import read_regular

Accepts = Callable[[str], bool | None]
"""Whether the file's text asks for something. None: not known yet, and asked again at the next look."""

PERIOD_S = 1.0
"""Between two looks. Each costs one stat per file."""


def stands(path: Path) -> bool:
    """Whether there is an entry of that name: a file, or a link, wherever it leads. OSError where that is not known."""
    try:
        os.stat(path, follow_symlinks=False)  # noqa: PTH116 - replaced in tests, where a filesystem hangs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class WatchedFiles:
    """The level of each file: of one that stands (KILL) 1 from when it was first there; of one that is written (SAVE)
    how often that has happened since the start, a file from before it not counted; of one that is read (PARK) how often
    its text was accepted, that of a file from before the start included."""

    def __init__(
        self,
        folder: Path,
        guard: Guard,
        *,
        standing: tuple[str, ...] = (),
        written: tuple[str, ...] = (),
        read: Mapping[str, Accepts] | None = None,
        period_s: float | None = None,
    ) -> None:
        """`period_s`: between two looks; None is PERIOD_S."""
        self._read = dict(read or {})
        self.levels: Mapping[str, int] = dict.fromkeys((*standing, *written, *self._read), 0)
        self._folder, self._guard, self._period_s = folder, guard, period_s
        self._standing, self._written = standing, written
        self._editions: dict[str, tuple[int, int] | None] = {}  # {a written file: that of the last look}
        self._unreadable: set[str] = set()
        self._looked, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sentinel-files", daemon=True)
        self._thread.start()

    def first_look(self, timeout_s: float) -> bool:
        """Waits until each file was looked at once; whether that has happened."""
        return self._looked.wait(timeout_s)

    def close(self) -> None:
        """The thread ends by itself; it is not waited for, as it may be in a call that hangs."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.is_set():
            with self._guard("watch the state folder"):
                self.look()
            self._looked.set()
            self._closing.wait(PERIOD_S if self._period_s is None else self._period_s)

    def look(self) -> None:
        """One look at each file. One that can't be read keeps its level."""
        levels = dict(self.levels)
        for name in levels:
            try:
                if name in self._standing:
                    levels[name] = max(levels[name], int(stands(self._folder / name)))
                elif name in self._written:
                    edition = self._edition(name)
                    levels[name] += name in self._editions and edition not in (None, self._editions[name])
                    self._editions[name] = edition
                else:
                    levels[name] += self._is_accepted(name)
            except OSError as error:
                self._report(name, error)
                continue
            self._unreadable.discard(name)
        self.levels = levels

    def _is_accepted(self, name: str) -> bool:
        """Whether there is a new text that asks for something. OSError where that is not known."""
        edition = self._edition(name)
        if edition is None or edition == self._editions.get(name):
            return False
        try:
            accepted = self._read[name](read_regular(self._folder / name).decode("utf-8", "replace"))
        except FileNotFoundError:  # removed since
            return False
        if accepted is not None:
            self._editions[name] = edition
        return bool(accepted)

    def _edition(self, name: str) -> tuple[int, int] | None:
        """Changes with each writing; None where there is no such file. OSError where that is not known."""
        try:
            stat = os.stat(self._folder / name)  # noqa: PTH116 - replaced in tests, where a filesystem hangs
        except (FileNotFoundError, NotADirectoryError):
            return None
        return stat.st_mtime_ns, stat.st_ino

    def _report(self, name: str, error: OSError) -> None:
        """Once, until the file can be read again."""
        if name not in self._unreadable:
            self._unreadable.add(name)
            with self._guard(f"look for the file {name}"):
                raise error
