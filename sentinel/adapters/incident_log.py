"""The incident log's file: appended, fsynced, one JSON object per line. The truth about what was done."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from sentinel.bounded import DOCUMENT_BYTES, UnfitFileError, open_regular, read_document
from sentinel.durable import os_errors_named, sync_folder
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_lines import event_of
from sentinel.vocabulary.errors import IncidentLogError, LineError
from sentinel.vocabulary.numbers import dump_json, load_object

T = TypeVar("T")


class EventLog(Generic[T]):
    """A log of events, as `to_json` writes and `from_json` reads them; LineError where a line is of no use."""

    def __init__(
        self, path: Path, from_json: Callable[[dict[str, Any]], T], to_json: Callable[[T], dict[str, Any]]
    ) -> None:
        self._path = path
        self._from_json, self._to_json = from_json, to_json
        self._read: tuple[int, list[T]] = (0, [])
        self._read_digest = _digest(b"")
        self._read_of: tuple[int, ...] | None = None

    def append(self, event: T) -> None:
        """Returns when the event is on the disk. A last line torn by a crash proves nothing and is cut off first.
        IncidentLogError where the event could not be read again, as with a clock beyond any calendar."""
        line = self._to_json(event)
        try:
            self._from_json(line)
        except LineError as error:
            raise IncidentLogError(f"{self._path}: an event can't be written: {error}") from error
        with os_errors_named(self._path):
            self._append((dump_json(line) + "\n").encode())

    def _append(self, line: bytes) -> None:
        new = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            whole = read_document(self._path).rfind(b"\n") + 1
            if whole < os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, whole)
            if os.write(descriptor, line) != len(line):
                raise OSError(f"{self._path}: only part of an event was written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._path.parent)

    def read(self) -> list[T]:
        """All events, oldest first. IncidentLogError names a line that can't be read, unless it is a torn last one.
        Only what is new is parsed, unless earlier lines changed. It is opened to find out: NFS then asks its server."""
        with os_errors_named(self._path):
            try:
                file = open_regular(self._path)
            except (FileNotFoundError, NotADirectoryError):
                return []
            with file:
                status = os.fstat(file.fileno())
                now = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                if now == self._read_of:
                    return list(self._read[1])
                data = file.read(DOCUMENT_BYTES + 1)
                if len(data) > DOCUMENT_BYTES:
                    raise UnfitFileError(errno.EFBIG, f"it has more than {DOCUMENT_BYTES >> 20} MiB", str(self._path))
        seen, events = self._read
        whole = data.rfind(b"\n") + 1
        if seen > whole or _digest(data[:seen]) != self._read_digest:  # it was repaired or replaced: read it anew
            seen, events = 0, []
        events = list(events)
        for number, line in enumerate(data[seen:whole].splitlines(), len(events) + 1):
            try:
                events.append(self._from_json(load_object(line.decode("utf-8", "replace"))))
            except LineError as error:
                raise IncidentLogError(f"{self._path}, line {number}: {error}") from error
        self._read, self._read_digest = (whole, events), _digest(data[:whole])
        self._read_of = now if whole == len(data) == status.st_size else None
        return list(events)


class IncidentLog(EventLog[IncidentEvent]):
    """STATE_DIR/incidents.jsonl."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, event_of, lambda event: event.to_json())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()
