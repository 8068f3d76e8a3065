"""From the incident log to the outboxes: each event that needs a page becomes one, once for each channel.

pages/followed.json holds the number of events that were turned into pages. Events that a killed daemon wrote to the
log and to no outbox are paged by the next daemon.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from sentinel import bounded
from sentinel.act.neighbours import Neighbours
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.paging.channels import Channel
from sentinel.adapters.paging.delivery import Delivery, Outbox
from sentinel.config import Config
from sentinel.durable import write_atomically
from sentinel.plan.alerts.page import ended, page_from_json, pages
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.vocabulary.errors import LineError, SentinelError
from sentinel.vocabulary.numbers import dump_json

log = logging.getLogger(__name__)

_LAST_SECONDS = 5.0  # that are left to the outboxes where no person is needed


class Paging:
    """The pages of one run. `append` raises errors of the incident log; no other method raises, or waits for a channel
    except `finish`."""

    def __init__(
        self, folder: Path, incident_log: IncidentLog, deliveries: Sequence[Delivery], *, run: str, runbook: str
    ) -> None:
        self._folder = folder
        self._log = incident_log
        self._deliveries = deliveries
        self._run = run
        self._runbook = runbook
        self._started = False
        self._failed: str | None = None
        self._first: int | None = None
        self._followed: dict[str, int] = {}
        self._remembered: dict[str, int] = {}

    def append(self, event: IncidentEvent) -> None:
        self.follow()
        self._log.append(event)
        self.follow()

    def start(self) -> None:
        """Starts the deliveries, with the events of the incident log that are in no outbox yet."""
        if self._started:
            return
        self._started = True
        self.follow()
        self._page_restart()
        for delivery in self._deliveries:
            delivery.start()

    def follow(self) -> None:
        """Turns new events of the incident log into pages. One that can't be written is tried at the next call."""
        if not self._deliveries:
            return
        for delivery in self._deliveries:
            delivery.look()
        try:
            self._follow()
        except (OSError, SentinelError) as error:
            self._report(f"can't write pages to the outbox: {error}")
        else:
            self._failed = None

    def problem(self) -> str | None:
        """Why pages can't be written now; None when they can."""
        return self._failed

    def ended(self, error: Exception, now_unix_s: float) -> None:
        """Pages that the watch ends by an error, which the incident log may not have."""
        page = ended(self._run, str(error), now_unix_s, runbook=self._runbook)
        try:
            for delivery in self._deliveries:
                delivery.put(page)
            if self._deliveries:
                write_atomically(self._folder / "ended.json", dump_json(page.to_json()))
        except (OSError, SentinelError) as failure:
            self._report(f"can't write pages to the outbox: {failure}")

    def finish(self, within_s: float = _LAST_SECONDS, *, or_when: Event | None = None) -> None:
        """Waits until all pages are delivered, `within_s` at most, and stops; the next watch delivers the rest."""
        if not self._started:
            return
        left = self._undelivered()
        for delivery in self._deliveries:
            if delivery.name in left:
                delivery.wake()
        end = time.monotonic() + within_s
        while self._undelivered() and time.monotonic() < end and not (or_when is not None and or_when.is_set()):
            time.sleep(0.05)
        for delivery in self._deliveries:
            delivery.stop()
        if left := self._undelivered():
            log.warning("pages not delivered: %s; the next watch of this run delivers them", ", ".join(left))

    def _undelivered(self) -> list[str]:
        try:
            return [delivery.name for delivery in self._deliveries if not delivery.outbox.empty()]
        except OSError as error:
            self._report(f"can't read the outboxes: {error}")
            return []

    def _follow(self) -> None:
        """Each channel by itself: an outbox that can't be written stops no other."""
        events = self._log.read()
        if self._first is None:
            self._first = len(events)
        failures: list[Exception] = []
        followed = self._read_followed(len(events))
        found = list(pages(events, self._run, runbook=self._runbook)) if set(followed.values()) != {len(events)} else []
        for delivery in self._deliveries:
            try:
                for number, page in found:
                    if number >= followed[delivery.name]:
                        delivery.put(page)
            except (OSError, SentinelError) as error:
                failures.append(error)
            else:
                followed[delivery.name] = len(events)
        self._followed = followed
        try:
            if followed != self._remembered:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_atomically(self._folder / "followed.json", dump_json({"events": followed}))
                self._remembered = followed
        except (OSError, SentinelError) as error:
            failures.append(error)
        if failures:
            raise failures[0]

    def _read_followed(self, now: int) -> dict[str, int]:
        """Channel -> number of events turned into its pages. A new channel gets no pages of the past."""
        try:
            read = bounded.read_record(self._folder / "followed.json", self._decoded)
        except (FileNotFoundError, LineError):
            read = {}
        followed = {}
        for delivery in self._deliveries:
            known = [one[delivery.name] for one in (read, self._followed) if delivery.name in one]
            newest = max(known, default=self._first or 0)
            followed[delivery.name] = newest if newest <= now else 0  # the log was replaced by a shorter one
        return followed

    def _decoded(self, data: Mapping[str, Any]) -> dict[str, int]:
        followed = data["events"]
        if isinstance(followed, int):  # one number for all channels, as older versions wrote it
            return {delivery.name: followed for delivery in self._deliveries}
        return {name: int(events) for name, events in followed.items()}

    def _page_restart(self) -> None:
        """Pages that a watch which ended by an error was started again."""
        note = self._folder / "ended.json"
        try:
            page = bounded.read_record(note, page_from_json)
            again = replace(page, resolved=True, summary="sentinel watch was started again", time_unix_s=time.time())
            for delivery in self._deliveries:
                delivery.put(again)
            note.unlink()
        except FileNotFoundError:
            return
        except (OSError, SentinelError) as error:
            self._report(f"can't read {note}: {error}")

    def _report(self, line: str) -> None:
        if line != self._failed:
            log.error("%s", line)
        self._failed = line


def paging_of(config: Config, near: Neighbours) -> Paging:
    folder, of = near.state_dir / "pages", config.paging
    pace = {"retry_up_to_s": of.retry_up_to_s, "give_up_after_s": of.give_up_after_s}
    deliveries = [
        Delivery(one.name, Channel(one, os.environ), Outbox(folder / one.name), severity=one.severity, **pace)
        for one in of.channels
    ]
    return Paging(folder, near.incident_log, deliveries, run=config.run.name, runbook=of.runbook)


def check_pagers(config: Config) -> None:
    """ConfigError when a channel has no secret: the person who starts a watch learns it, not the one on call."""
    for settings in config.paging.channels:
        Channel(settings, os.environ).check()


@contextmanager
def delivering(paging: Paging) -> Iterator[None]:
    """Delivers pages while the context lasts, and for a few seconds after it."""
    paging.start()
    try:
        yield
    finally:
        paging.finish()
