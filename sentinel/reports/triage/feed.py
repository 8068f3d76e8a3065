"""What is new, in numbered messages, for any number of pages that look on."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

from sentinel.act.source import Source, read_all
from sentinel.vocabulary.errors import SentinelError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample

__all__ = ["Feed", "Message"]

log = logging.getLogger(__name__)

_KEPT = 50_000
"""Messages that a page may have missed and still catch up with; one that has missed more takes the page anew."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that happened: `sample` with the sample as JSON, or `changed`: the document is another one now."""

    number: int
    kind: str
    data: str


class Feed:
    """Polls the run's source and its incident log; thread-safe."""

    def __init__(self, source: Source, incident_log: Path) -> None:
        self._source = source
        self._incident_log = incident_log
        self._messages: deque[Message] = deque(maxlen=_KEPT)
        self._news = threading.Condition()
        self._number = 0
        self.changes = 0
        """How often the document became another one, beyond its newest samples."""

        self.life = secrets.token_hex(4)
        """Tells this process's numbers from those of one before it."""

        self._log_seen = self._log_size()
        past = read_all(self._source)  # what is there already is the document's
        self._attempts = {record.attempt for record in past}

    @property
    def mark(self) -> str:
        """Where the feed stands: `LIFE-NUMBER`, as a page names it."""
        with self._news:
            return f"{self.life}-{self._number}"

    def look(self) -> None:
        """Takes what is new. What can't be read now is tried again at the next look."""
        try:
            records = self._source.poll()
        except (OSError, SentinelError) as error:
            log.warning("the readings can't be read now: %s", error)
            records = []
        size = self._log_size()
        with self._news:
            for record in records:
                self._take(record)
            if size != self._log_seen:
                self._log_seen = size
                self._changed()
            self._news.notify_all()

    def after(self, mark: str, timeout_s: float) -> list[Message] | None:
        """The messages after a mark, waiting for the first of them; [] when none came; None: take the document anew."""
        life, _, number = mark.rpartition("-")
        if life != self.life or not number.isdigit():
            return None
        with self._news:
            self._news.wait_for(lambda: self._number > int(number), timeout_s)
            oldest = self._messages[0].number if self._messages else self._number + 1
            if int(number) > self._number or int(number) < oldest - 1:
                return None
            return [message for message in self._messages if message.number > int(number)]

    def _take(self, record: Record) -> None:
        if record.attempt not in self._attempts:
            self._attempts.add(record.attempt)
            self._changed()
        if isinstance(record, Sample):
            self._append("sample", dump_json(asdict(record)))
        elif isinstance(record, RunStarted | RunFinished):
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self._append("changed", "{}")

    def _append(self, kind: str, data: str) -> None:
        self._number += 1
        self._messages.append(Message(self._number, kind, data))

    def _log_size(self) -> int:
        try:
            return self._incident_log.stat().st_size
        except OSError:
            return 0
