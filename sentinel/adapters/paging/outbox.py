"""STATE_DIR/pages/CHANNEL/: what a channel has still to deliver, one file for each page, in the order it happened."""

from __future__ import annotations

import logging
from pathlib import Path

from sentinel import bounded
from sentinel.durable import sync_folder, write_atomically
from sentinel.plan.page import Page, page_from_json
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Outbox"]

log = logging.getLogger(__name__)


class Outbox:
    """One channel's pages. A file that is there was not delivered; what is given up is kept in given-up/."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, page: Page) -> None:
        """Returns when the page is on the disk; the same page again is the same file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / _name(page), dump_json(page.to_json()))

    def waiting(self) -> list[Page]:
        """What is to be delivered, oldest first."""
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
        """Whether nothing is to be delivered."""
        return not self._files()

    def given_up(self) -> int:
        """How many pages were given up."""
        return len(list((self._folder / "given-up").glob("*.json")))

    def delivered(self, page: Page) -> None:
        """It has arrived; the incident log still tells of it."""
        (self._folder / _name(page)).unlink(missing_ok=True)

    def give_up(self, page: Page) -> None:
        """It is not tried any more, and kept."""
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
