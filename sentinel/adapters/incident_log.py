"""The incident log's file: appended, fsynced, one JSON object per line. The truth about what was done."""

from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.bounded import DOCUMENT_BYTES, UnfitFileError, open_regular, read_document
from sentinel.durable import os_errors_named, sync_folder
from sentinel.vocabulary.errors import IncidentLogError, LineError
from sentinel.vocabulary.names import why_not_a_name
from sentinel.vocabulary.numbers import UNIX_SECONDS, dump_json, load_object, to_number

_EVENTS = {"troubled": "alert_firing", "relieved": "alert_resolved"}  # names in older logs, and what they are now
_TOPICS = {"struggling": "watch_failing"}


def with_new_names(written: Mapping[str, Any]) -> dict[str, Any]:
    """An event of the incident log with the names that events and topics have now."""
    kind, topic = written["event"], written.get("topic")
    new = {"event": _EVENTS.get(kind, kind), **({} if topic is None else {"topic": _TOPICS.get(topic, topic)})}
    return {**written, **new}


def checked_event(event: dict[str, Any]) -> dict[str, Any]:
    """The event, by its present names, with what every reader of the log relies on. LineError says what is wrong."""
    if not isinstance(event.get("event"), str):
        raise LineError(f"event should be a string, not {type(event.get('event')).__name__}")
    if not isinstance(event.get("topic"), str | None):
        raise LineError(f"topic should be a string, not {type(event['topic']).__name__}")
    if (incident := event.get("incident")) is not None:
        why = why_not_a_name(incident) if isinstance(incident, str) else "should be a string"
        if why is not None:
            raise LineError(f"incident {why}")
    time_unix_s = to_number(event.get("time_unix_s"), "time_unix_s")
    if time_unix_s is None or math.isnan(time_unix_s):
        raise LineError("time_unix_s is missing")
    if time_unix_s not in UNIX_SECONDS:
        raise LineError(f"time_unix_s should be {UNIX_SECONDS}, not {time_unix_s:g}")
    return with_new_names(event)


class IncidentLog:
    """STATE_DIR/incidents.jsonl, or another log that is kept in the same way: `check` says what its events have."""

    def __init__(self, path: Path, check: Callable[[dict[str, Any]], dict[str, Any]] = checked_event) -> None:
        self._path = path
        self._check = check
        self._read: tuple[int, list[dict[str, Any]]] = (0, [])
        self._read_digest = _digest(b"")
        self._read_of: tuple[int, ...] | None = None

    def append(self, event: Mapping[str, Any]) -> None:
        """Returns when the event is on the disk. A last line torn by a crash proves nothing and is cut off first.
        IncidentLogError where the event could not be read again, as with a clock beyond any calendar."""
        try:
            self._check(dict(event))
        except LineError as error:
            raise IncidentLogError(f"{self._path}: an event can't be written: {error}") from error
        with os_errors_named(self._path):
            self._append(event)

    def _append(self, event: Mapping[str, Any]) -> None:
        new = not self._path.exists()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        try:
            whole = read_document(self._path).rfind(b"\n") + 1
            if whole < os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, whole)
            line = (dump_json(dict(event)) + "\n").encode()
            if os.write(descriptor, line) != len(line):
                raise OSError(f"{self._path}: only part of an event was written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_folder(self._path.parent)

    def read(self) -> list[dict[str, Any]]:
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
                events.append(self._check(load_object(line.decode("utf-8", "replace"))))
            except LineError as error:
                raise IncidentLogError(f"{self._path}, line {number}: {error}") from error
        self._read, self._read_digest = (whole, events), _digest(data[:whole])
        self._read_of = now if whole == len(data) == status.st_size else None
        return list(events)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()
