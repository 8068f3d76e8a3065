"""STATE_DIR/turns: the facts of each turn that recorded, acted or refused: it can be explained, and decided again."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.act.perform import without_seconds
from sentinel.durable import write_atomically
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.outcome import Memory, Turn
from sentinel.plan.review.kept_turn import to_json
from sentinel.vocabulary.errors import ConfigError, LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json, load_object

log = logging.getLogger(__name__)
MOST_TURNS, MOST_BYTES = 2_000, 64 << 20  # of all that are kept: the oldest go first
_LARGEST_BYTES = 64 << 20  # of one, as JSON
_NAME = re.compile(r"(\d{8})-([A-Za-z0-9._-]+)\.json\.gz$", re.ASCII)


class KeptTurns:
    """One file for each turn, NUMBER-INCIDENT.json.gz (NUMBER-run.json.gz outside of an incident). A turn that repeats
    the one before it, ages aside, is not kept again. What can't be written is logged, and holds nothing up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: tuple[object, ...] | None = None

    def keep(self, facts: Facts, policy: Policy, memory: Memory, turn: Turn) -> None:
        if not (turn.does or turn.message is not None or turn.outcome is not None or facts.own.failure is not None):
            return
        this = (without_seconds(turn.reason), turn.actions, tuple(e.kind for e in turn.records), turn.outcome)
        if this == self._last:
            return
        self._last = this
        try:
            self._write(to_json(facts, policy, memory, turn), _incident_of(facts, turn))
        except (OSError, SentinelError, ValueError) as error:
            log.warning("this turn can't be kept, and can't be explained later: %s", error)

    def _write(self, document: dict[str, Any], incident: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        there = list(self.numbers())
        number = 1 + max((one for one, _ in there), default=0)
        packed = gzip.compress(dump_json(document).encode(), 6, mtime=0)
        sizes = [(path, path.stat().st_size) for _, path in there]
        too_many, room = len(there) + 1 - MOST_TURNS, MOST_BYTES - len(packed) - sum(size for _, size in sizes)
        for path, size in sizes:
            if too_many <= 0 and room >= 0:
                break
            path.unlink(missing_ok=True)
            too_many, room = too_many - 1, room + size
        write_atomically(self._folder / f"{number:08}-{incident}.json.gz", packed)

    def numbers(self, incident: str | None = None) -> Iterator[tuple[int, Path]]:
        """Number and file of each turn that is kept, the oldest first; those of one incident where it is named."""
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            found = _NAME.fullmatch(name)
            if found is not None and incident in (None, found[2]):
                yield int(found[1]), self._folder / name

    def read(self, path: Path) -> dict[str, Any]:
        """ConfigError names the file and what is wrong with it."""
        return read_packed(path)


def read_packed(path: Path) -> dict[str, Any]:
    """The JSON object of a file that may be packed by gzip. ConfigError names it and what is wrong."""
    try:
        with bounded.open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(_LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:  # gzip's BadGzipFile is an OSError
        raise ConfigError(f"{path} can't be read: {error}") from error
    if len(data) > _LARGEST_BYTES:
        raise ConfigError(f"{path} holds more than {_LARGEST_BYTES >> 20} MiB")
    try:
        return load_object(data.decode("utf-8"))
    except (LineError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no kept turn: {error}") from error


def _incident_of(facts: Facts, turn: Turn) -> str:
    named = [turn.incident, *(e.incident for e in turn.records), *(i.id for i in turn.undo)]
    open_one = facts.open_incident
    return next((str(name) for name in named if name), open_one.id if open_one is not None else "run")
