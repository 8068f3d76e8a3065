"""Which files of which checkpoints were read whole and found sound: STATE_DIR/verified.json.

It may be deleted at any time: then the files are read again. A file is known by its inode, its size, and the times of
its last change and of its inode's (mtime, ctime): whatever differs in one of them is read again. What no time shows, a
bit that flips on the disk, is found by reading alone: after a week everything is read again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from sentinel import bounded
from sentinel.adapters.checkpoints.walk import Item
from sentinel.durable import write_atomically
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.numbers import load_object

log = logging.getLogger(__name__)

VERIFIED = "verified.json"  # below the run's state folder
_MOST_FILES = 50_000  # of all checkpoints together, some 8 MB; the oldest checkpoints go first
_LASTS_S = 7 * 86_400.0
_SETTLED_S = 2.0  # a file that is younger may change within one tick of its filesystem's clock, and look the same

Pieces = Mapping[str, Sequence[tuple[int, int]]]


class FileRead(NamedTuple):
    """One file, as it was read whole and found sound."""

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    read_unix_s: float
    crcs: bool  # whether its members' CRCs were compared
    pieces: int  # CRC-32 of what says where its members are, where that is another file (torch DCP)
    sha256: str | None

    def is_of(self, item: Item) -> bool:
        return self[:4] == (item.identity[1], item.size_bytes, item.mtime_ns, item.ctime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What a verification has to find out about each file."""

    crcs: bool
    digests: bool
    pieces: Pieces

    def is_in(self, known: FileRead, item: Item, now_unix_s: float) -> bool:
        return (
            known.is_of(item)
            and (known.crcs or not self.crcs)
            and (known.sha256 is not None or not self.digests)
            and known.pieces == self._pieces(item.name)
            and 0 <= now_unix_s - known.read_unix_s < _LASTS_S
        )

    def read(self, item: Item, sha256: str | None, began_unix_s: float) -> FileRead:
        pieces = self._pieces(item.name)
        return FileRead(
            item.identity[1], item.size_bytes, item.mtime_ns, item.ctime_ns, began_unix_s, self.crcs, pieces, sha256
        )

    def _pieces(self, name: str) -> int:
        found = self.pieces.get(name, ())
        return zlib.crc32(json.dumps([list(piece) for piece in found]).encode()) if found else 0


Files = dict[str, FileRead]  # by name, below the checkpoint


class Remembered:
    """Of the checkpoints of one folder. Never raises: what can't be read or written is not remembered."""

    def __init__(self, path: Path, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """path: STATE_DIR/verified.json; folder: of the checkpoints."""
        self._path, self._folder = path, str(folder)
        self._clock = clock
        self._lock = Lock()  # of the file, between the threads of this process

    def now_unix_s(self) -> float:
        return self._clock()

    def known(self, tag: str, items: Sequence[Item], needed: Needed) -> Files:
        """The files that need not be read again, by name."""
        files, now_unix_s = self._load().get(tag, {}), self._clock()
        found = ((item.name, files.get(item.name), item) for item in items)
        return {n: known for n, known, item in found if known is not None and needed.is_in(known, item, now_unix_s)}

    def keep(self, tag: str, known: Files, read: Files) -> None:
        """What was known of the checkpoint's files, and what was read now; in place of all that was known of it."""
        settled = known | {name: one for name, one in read.items() if _is_settled(one)}
        with self._lock:
            self._save({**{t: f for t, f in self._load().items() if t != tag}, tag: settled})

    def forget(self, tag: str) -> None:
        with self._lock:
            before = self._load()
            if before.pop(tag, None) is not None:
                self._save(before)

    @contextmanager
    def linking(self, tag: str, items: Callable[[], Sequence[Item]]) -> Iterator[None]:
        """Around a change of the links of the checkpoint's files, which changes their ctime and nothing of them."""
        files = self._load().get(tag, {})
        before = (
            {i.name for i in items() if (known := files.get(i.name)) is not None and known.is_of(i)} if files else ()
        )
        yield
        if before:
            after = {item.name: item.ctime_ns for item in items()}
            moved = {n: f._replace(ctime_ns=after[n]) for n, f in files.items() if n in before and n in after}
            with self._lock:
                self._save({**self._load(), tag: files | moved})

    def _load(self) -> dict[str, Files]:
        """Tag -> files, the longest known first; empty where there is nothing to be read."""
        try:
            data = load_object(bounded.read_text(self._path))
            if data.get("folder") != self._folder:
                return {}
            return {tag: {n: _read(f) for n, f in files.items()} for tag, files in data["checkpoints"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SentinelError) as error:
            log.debug("%s is not used: %r", self._path, error)
            return {}

    def _save(self, checkpoints: dict[str, Files]) -> None:
        kept, room = dict[str, Files](), _MOST_FILES
        for tag, files in reversed(checkpoints.items()):  # the newest was put last
            room -= len(files)
            if room >= 0:
                kept = {tag: files, **kept}
        data = {
            "folder": self._folder,
            "checkpoints": {t: {n: list(f) for n, f in fs.items()} for t, fs in kept.items()},
        }
        with contextlib.suppress(OSError, SentinelError):
            write_atomically(self._path, json.dumps(data))


def _read(values: Sequence[object]) -> FileRead:
    """ValueError for what is none."""
    match values:
        case [int(), int(), int(), int(), float() | int(), bool(), int(), str() | None]:
            return FileRead(*values)  # type: ignore[arg-type]
    raise ValueError(f"{values!r} is no file that was read")


def _is_settled(one: FileRead) -> bool:
    return max(one.mtime_ns, one.ctime_ns) < (one.read_unix_s - _SETTLED_S) * 1e9
