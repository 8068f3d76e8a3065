"""Which file under the save folder was written last: a full look before anything acts, few calls in between."""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.adapters.checkpoints import SaveFolder
from sentinel.adapters.checkpoints.entries import Entries
from sentinel.adapters.checkpoints.save_folder import Identity
from sentinel.adapters.mounts import is_local

_NEWEST = 2  # folders, and as many checkpoints that are files
_DEPTH = 3
_FILES = 4096  # files of a checkpoint that are looked at, at most: of thousands of shards the others tell the same
_FOLLOWED = 8  # files that are asked for between two full looks
_FULL_EVERY_S = 60.0
_QUIET_SHARED_S, _QUIET_LOCAL_S = 120.0, 3.0  # clients of a file server may see a change a minute late
_FULL_SHARE = 0.01  # of the time, at most, that full looks take: on a slow filesystem they are rarer


class SavedFiles:
    """Files of the checkpoints that were changed last. Not the folder itself, nor `latest`, nor TensorBoard's files
    below it (`except_for`): a rollback changes those.

    A full look asks for the times of all files in the two folders that were changed last, and of the two newest
    checkpoints that are files. Between two full looks the newest files are followed; a change of the folders themselves
    is a reason to look at all again. A shard that grows in place while the newest ones do not may then show up to a
    minute late. So nothing is fenced by that: a fence asks for a full look.
    """

    def __init__(
        self, folder: SaveFolder, *, except_for: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._except_for = None if except_for is None else except_for.absolute()
        self._clock = clock
        self._followed: list[Path] = []  # of the last full look, the newest first
        self._units: dict[str, Identity | None] = {}  # whose files were looked at then
        self._next_full_s: float | None = None

    def newest(self, *, fresh: bool = False) -> Path | None:
        """The file that was written last; None where there is none, or the folder can't be read. `fresh`: by a full
        look, of all that there is now."""
        try:
            view = self._folder.look(fresh=fresh)
        except OSError:
            return None
        units = [*view.newest(_NEWEST, folders=True), *view.newest(_NEWEST, folders=False)]
        now = {unit: view.identities[unit] for unit in units}
        if fresh or now != self._units or self._next_full_s is None or self._clock() >= self._next_full_s:
            began_s = self._clock()
            files = (path for unit in units for path in self._files(view.entries, unit) if self._counts(path))
            self._followed, self._units = heapq.nlargest(_FOLLOWED, files, key=modified_unix_s), now
            took_s = self._clock() - began_s
            self._next_full_s = self._clock() + max(_FULL_EVERY_S, took_s / _FULL_SHARE)
        return max(self._followed, key=modified_unix_s, default=None)

    def _counts(self, path: Path) -> bool:
        return self._except_for is None or not path.absolute().is_relative_to(self._except_for)

    def _files(self, entries: Entries, unit: str) -> Iterator[Path]:
        folder, files = self._folder.path, entries.files.get(unit, (unit,))
        yield from (folder / name for name in files if entries.kinds[name] == "file")
        yield from (path for name in files if entries.kinds[name] != "file" for path in _files(folder / name, _DEPTH))


def quiet_s_of(checkpoints: Path) -> float:
    """[judge] quiet_s where it is not set."""
    return _QUIET_LOCAL_S if is_local(checkpoints) else _QUIET_SHARED_S


def modified_unix_s(path: Path) -> float:
    """When the file was written last, by its filesystem's clock; 0 where it can't be seen."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _files(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number > _FILES:
                return
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
            elif depth > 1 and entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path), depth - 1)
