"""From the incident log to the outboxes: what of it concerns somebody, once.

The log is followed by a number on the disk of the events that were turned into pages. So what a killed daemon had
written to the log, and to no outbox, is paged by the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from sentinel import bounded
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.paging.channels import Channel
from sentinel.adapters.paging.delivery import Delivery
from sentinel.adapters.paging.outbox import Outbox
from sentinel.durable import write_atomically
from sentinel.plan.page import Page, ended, page_from_json, pages
from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Pager", "Paging"]

log = logging.getLogger(__name__)

_LAST_SECONDS = 5.0
"""What an end that needs nobody leaves the outboxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pager:
    """One channel with its outbox."""

    name: str
    severity: str
    """warning takes every page; critical only those."""

    channel: Channel
    outbox: Outbox
    delivery: Delivery


class Paging:
    """Nothing of it raises, and nothing waits for a pager but the end of a command."""

    def __init__(
        self, folder: Path, incident_log: IncidentLog, pagers: Sequence[Pager], *, run: str, runbook: str
    ) -> None:
        self._folder = folder
        self._log = incident_log
        self._pagers = pagers
        self._run = run
        self._runbook = runbook
        self._started = False
        self._failed: str | None = None
        self._first: int | None = None
        self._told: dict[str, int] = {}
        self._remembered: dict[str, int] = {}

    def append(self, event: Mapping[str, Any]) -> None:
        """Appends to the incident log, and pages whom it concerns. Raises what the log raises, and nothing else."""
        self.follow()
        self._log.append(event)
        self.follow()

    def start(self) -> None:
        """Starts delivering; takes up what the incident log tells and no outbox has."""
        if self._started:
            return
        self._started = True
        self.follow()
        self._started_again()
        for pager in self._pagers:
            pager.delivery.start()

    def follow(self) -> None:
        """Turns into pages what is new in the incident log. What can't be written now is written the next time."""
        if not self._pagers:
            return
        for pager in self._pagers:
            pager.delivery.look()
        try:
            self._follow()
        except (OSError, SentinelError) as error:
            self._say(f"pages can't be put into the outbox: {error}")
        else:
            self._failed = None

    def problem(self) -> str | None:
        """Why pages can't be written now; None when they can."""
        return self._failed

    def ended(self, error: Exception, now_unix_s: float) -> None:
        """The watch ends with what no incident tells, perhaps since its log can't be read."""
        page = ended(self._run, str(error), now_unix_s, runbook=self._runbook)
        try:
            for pager in self._pagers:
                self._put(page, pager)
            if self._pagers:
                write_atomically(self._folder / "ended.json", dump_json(page.to_json()))
        except (OSError, SentinelError) as failure:
            self._say(f"pages can't be put into the outbox: {failure}")

    def finish(self, within_s: float = _LAST_SECONDS, *, or_when: Event | None = None) -> None:
        """Waits until all is delivered, for so long at most, then ends the delivery; the rest is for the next one."""
        if not self._started:
            return
        left = self._left()
        for pager in self._pagers:
            if pager.name in left:
                pager.delivery.wake()
        end = time.monotonic() + within_s
        while self._left() and time.monotonic() < end and not (or_when is not None and or_when.is_set()):
            time.sleep(0.05)
        for pager in self._pagers:
            pager.delivery.stop()
        if left := self._left():
            log.warning("not delivered: %s; the next watch of this run goes on with it", ", ".join(left))

    def _left(self) -> list[str]:
        """Channels that have not delivered all of theirs."""
        try:
            return [pager.name for pager in self._pagers if not pager.outbox.empty()]
        except OSError as error:
            self._say(f"the outboxes can't be looked at: {error}")
            return []

    def _follow(self) -> None:
        """Each channel by itself: one whose outbox can't be written holds up no other."""
        events = self._log.read()
        if self._first is None:
            self._first = len(events)
        failures: list[Exception] = []
        told = self._read_told(len(events))
        found = list(pages(events, self._run, runbook=self._runbook)) if set(told.values()) != {len(events)} else []
        for pager in self._pagers:
            try:
                for number, page in found:
                    if number >= told[pager.name]:
                        self._put(page, pager)
            except (OSError, SentinelError) as error:
                failures.append(error)
            else:
                told[pager.name] = len(events)
        self._told = told
        try:
            if told != self._remembered:
                self._remember(told)
        except (OSError, SentinelError) as error:
            failures.append(error)
        if failures:
            raise failures[0]

    def _put(self, page: Page, pager: Pager) -> None:
        if pager.severity == "warning" or page.severity == "critical":
            pager.outbox.put(page)
            pager.delivery.wake()

    def _read_told(self, now: int) -> dict[str, int]:
        """Channel -> how many events were turned into its pages. A channel that is new is not paged for the past."""
        try:
            read = bounded.read_record(self._folder / "followed.json", self._told_in)
        except (FileNotFoundError, LineError):
            read = {}
        told = {}
        for pager in self._pagers:
            known = [one[pager.name] for one in (read, self._told) if pager.name in one]
            newest = max(known, default=self._first or 0)
            told[pager.name] = newest if newest <= now else 0  # another log stands in the place of the one followed
        return told

    def _told_in(self, data: Mapping[str, Any]) -> dict[str, int]:
        told = data["events"]
        if isinstance(told, int):  # one number for all channels, as older versions wrote it
            return {pager.name: told for pager in self._pagers}
        return {name: int(events) for name, events in told.items()}

    def _remember(self, told: dict[str, int]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / "followed.json", dump_json({"events": told}))
        self._remembered = told

    def _started_again(self) -> None:
        """A watch that had ended is there again."""
        note = self._folder / "ended.json"
        try:
            page = bounded.read_record(note, page_from_json)
            again = replace(page, resolved=True, summary="sentinel watch was started again", time_unix_s=time.time())
            for pager in self._pagers:
                self._put(again, pager)
            note.unlink()
        except FileNotFoundError:
            return
        except (OSError, SentinelError) as error:
            self._say(f"{note} can't be read: {error}")

    def _say(self, line: str) -> None:
        if line != self._failed:
            log.error("%s", line)
        self._failed = line
