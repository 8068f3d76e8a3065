"""Which configurations are in a folder, looked at once a minute in a thread: a folder that hangs holds up no run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sentinel.config.run_files import Chosen
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)


class FolderCheck:
    """A member of the fleet. Names alone are compared: what has changed in a file is applied at SIGHUP.

    `changed` is called with all paths that are there, in the turn's thread. A configuration counts as removed once it
    was missing at two looks: an editor may replace a file by removing it first.
    """

    pace_s = 60.0

    def __init__(self, chosen: Chosen, known: tuple[Path, ...], changed: Callable[[tuple[Path, ...]], None]) -> None:
        self._chosen = chosen
        self._changed = changed
        self._known = set(known)
        self._missing: set[Path] = set()

    def turn(self, late_s: float) -> bool:  # noqa: ARG002 - of a member of the fleet
        try:
            there = set(self._chosen.paths())
        except (ConfigError, OSError) as error:  # not even one: the folder is away
            log.debug("the configurations stay in force: %s", error)
            return True
        missing = self._known - there
        gone, self._missing = missing & self._missing, missing
        if gone or there - self._known:
            self._known = (self._known | there) - gone
            self._changed(tuple(sorted(self._known)))
        return True

    def leave(self, within_s: float) -> None:
        """Nothing is held."""
