"""One channel's outbox, STATE_DIR/pages/CHANNEL/, and the worker thread that delivers what is in it, in order."""

from __future__ import annotations

import logging
import time
from contextvars import copy_context
from pathlib import Path
from random import SystemRandom
from threading import Event, Lock, Thread

from sentinel import bounded
from sentinel.adapters.paging.channels import Channel
from sentinel.durable import sync_folder, write_atomically
from sentinel.plan.alerts.page import Page, page_from_json
from sentinel.plan.topics import Severity
from sentinel.vocabulary.errors import LineError, PagerError, SentinelError
from sentinel.vocabulary.numbers import dump_json

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 60.0  # after which an outbox is looked at again without a wake, and a thread with nothing to do ends


class Outbox:
    """One channel's pages. A file that is there was not delivered; what is given up is kept in given-up/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, page: Page) -> None:
        """Returns when the page is on the disk; the same page again is the same file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / _name(page), dump_json(page.to_json()))

    def waiting(self) -> list[Page]:
        found = []
        for path in self._files():
            try:
                found.append(bounded.read_record(path, page_from_json))
            except FileNotFoundError:  # another sentinel of this run has delivered it
                continue
            except LineError as error:
                log.error("%s is no page that can be read (%s); it is kept in given-up", path, error)
                self._set_aside(path.name)
        return found

    def empty(self) -> bool:
        return not self._files()

    def given_up(self) -> int:
        return len(list((self._folder / "given-up").glob("*.json")))

    def delivered(self, page: Page) -> None:
        """It has arrived; the incident log still tells of it."""
        (self._folder / _name(page)).unlink(missing_ok=True)

    def give_up(self, page: Page) -> None:
        self._set_aside(_name(page))

    def _set_aside(self, name: str) -> None:
        aside = self._folder / "given-up"
        aside.mkdir(exist_ok=True)
        (self._folder / name).rename(aside / name)
        sync_folder(aside)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*.json") if not path.name.startswith("."))


def _name(page: Page) -> str:
    """Sorts by time; one event may end two stories, so the topic is part of it."""
    return f"{page.time_unix_s:017.3f}-{page.topic}-{page.incident or 'run'}.json"


class Delivery:
    """Delivers at least once. Nobody waits for it: a channel that hangs holds up its own pages and nothing else. Its
    thread is there while there is something to deliver: a thousand runs that are well need no thousand threads."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        outbox: Outbox,
        *,
        retry_up_to_s: float,
        give_up_after_s: float,
        severity: Severity = "warning",
    ) -> None:
        self.name, self.outbox = name, outbox
        self._severity = severity  # warning: every page; critical: the critical ones alone
        self._channel = channel
        self._retry_up_to_s = retry_up_to_s
        self._give_up_after_s = give_up_after_s
        self._wake = Event()
        self._stopped = Event()
        self._random = SystemRandom()
        self._reported: str | None = None
        self._started = False
        self._thread: Thread | None = None
        self._lock = Lock()
        self._looked_s = 0.0

    def start(self) -> None:
        self._started = True
        self._look()

    def put(self, page: Page) -> None:
        """Takes a page on, where the channel is for such; returns when it is on the disk."""
        if self._severity == "warning" or page.severity == "critical":
            self.outbox.put(page)
            self.wake()

    def wake(self) -> None:
        self._wake.set()
        self._work()

    def look(self) -> None:
        """Now and then: another command of the same run may have put a page into the outbox."""
        if self._started and self._is_idle and time.monotonic() - self._looked_s >= _LOOK_AGAIN_S:
            self._look()

    def stop(self) -> None:
        """Ends it without waiting; what it is just sending is sent again by the next one."""
        self._stopped.set()
        self._wake.set()

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        try:
            empty = self.outbox.empty()
        except OSError:  # the thread says so, and tries again
            empty = False
        if not empty:
            self._work()

    def _work(self) -> None:
        with self._lock:
            if self._is_idle and self._started and not self._stopped.is_set():
                run = copy_context().run  # its lines name the run that they are about
                thread = Thread(target=run, args=(self._run,), name=f"page-{self.name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # there can be no more threads just now: the next look tries again
                    log.error("no thread can be started for the pages by %s: %s", self.name, error)
                else:
                    self._thread = thread

    @property
    def _is_idle(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        tries = 0
        while not self._stopped.is_set():
            self._wake.clear()
            failed = self._round()
            tries = 0 if failed is None else tries + 1
            if failed is not None and failed.retry_after_s:  # it asks to be left alone, by new pages too
                self._stopped.wait(failed.retry_after_s)
            elif self._wake.wait(_LOOK_AGAIN_S if failed is None else self._pause_s(tries)):
                tries = 0
            elif failed is None and self._ends():
                return

    def _pause_s(self, tries: int) -> float:
        """Exponential, with jitter: many runs' daemons lose and find the same pager at the same time."""
        return min(self._retry_up_to_s, 2.0 ** min(tries - 1, 30)) * self._random.uniform(0.5, 1.0)

    def _ends(self) -> bool:
        """Nothing has come for a while: the next page starts another thread."""
        with self._lock:
            if self._wake.is_set():
                return False
            self._thread, self._looked_s = None, time.monotonic()
            return True

    def _round(self) -> PagerError | None:
        """Tries each page once; returns the last failure. What is behind a page of its own key waits for that."""
        behind: set[str] = set()
        last: PagerError | None = None
        try:
            for page in self.outbox.waiting():
                if self._stopped.is_set():
                    break
                if page.key in behind or self._is_too_old(page):
                    continue
                failed = self._try(page)
                if failed is not None:
                    behind.add(page.key)
                    last = failed
        except (OSError, SentinelError) as error:  # the state folder's filesystem is away
            last = PagerError(f"the outbox can't be used: {error}")
            self._say(last)
        return last

    def _try(self, page: Page) -> PagerError | None:
        try:
            self._channel.send(page)
        except SentinelError as error:
            failed = error if isinstance(error, PagerError) else PagerError(str(error))
        except Exception as error:  # noqa: BLE001 - the top of a thread: one that is gone pages nobody
            failed = PagerError(f"{type(error).__name__}: an error of sentinel's own")  # its text may quote a secret
        else:
            self.outbox.delivered(page)
            self._reported = None
            log.info("page %s has arrived by %s", page.id, self.name)
            return None
        self._say(failed)
        return failed

    def _say(self, failed: PagerError) -> None:
        level = logging.DEBUG if str(failed) == self._reported else logging.WARNING
        self._reported = str(failed)
        log.log(level, "a page can't be delivered by %s: %s; trying again", self.name, failed)

    def _is_too_old(self, page: Page) -> bool:
        age_s = time.time() - page.time_unix_s
        if age_s <= self._give_up_after_s:
            return False
        log.error("page %s is given up after %.0f s: %s never took it; it is kept", page.id, age_s, self.name)
        self.outbox.give_up(page)
        return True
