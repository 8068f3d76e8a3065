"""Where the runs of a daemon are watched: in its own process, or in worker processes (`sentinel.daemon.pool`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from sentinel.config import Config
from sentinel.daemon.scheduler import Fleet
from sentinel.daemon.watched_run import Shared, Watched

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of one run, after a turn."""

    code: int | None = None  # exit code of its watch; None while it lasts
    held: bool = False  # another process has its lock, and the watch is over
    well: bool = True  # whether the watch ended as it should
    kind: str | None = None  # of the verdict; None before the first look


Stands = Callable[[Path, Standing], None]


class WatchPlace(Protocol):
    """Runs are known by the paths of their configurations."""

    def put(self, path: Path, config: Config) -> None:
        """Begins to watch the run, or applies another configuration of it."""

    def remove(self, path: Path) -> None:
        """Ends the watch of the run after the turn under way."""

    def tend(self) -> None:
        """Called often: restores what has died."""

    def end(self) -> None:
        """Ends all after the turns under way; called again and again until `is_over`, and says whose turns hang."""

    def interrupt(self) -> None:
        """Ends all without waiting for the turns under way."""

    def left(self) -> list[Path]:
        """Runs that are still watched."""

    def is_over(self) -> bool:
        """After `end`: whether no turn is under way."""


class InProcess:
    """Runs as members of a fleet of this process."""

    def __init__(self, fleet: Fleet, shared: Shared, stands: Stands) -> None:
        self._fleet = fleet
        self._shared = replace(shared, turned=self._turned)
        self._stands = stands
        self._watched: dict[Path, Watched] = {}
        self._paths: dict[Watched, Path] = {}
        self._hanging: set[Watched] = set()  # of which it was said

    def put(self, path: Path, config: Config) -> None:
        watched = self._watched.get(path)
        if watched is not None and watched.code is None and not watched.held:
            watched.reload(config)
            self._fleet.hurry(watched)
            return
        self._forget(path)
        self._watched[path] = watched = Watched(config, self._shared)
        self._paths[watched] = path
        self._fleet.add(watched)

    def remove(self, path: Path) -> None:
        if (watched := self._forget(path)) is not None:
            self._fleet.remove(watched)

    def tend(self) -> None:
        """Nothing can have died."""

    def end(self) -> None:
        self._shared.stop.set()
        self._fleet.end()
        for member, since_s in self._fleet.hanging():
            if isinstance(member, Watched) and member not in self._hanging:
                self._hanging.add(member)
                waits = "%s: waiting for a turn that has run for %.0f s; a second SIGTERM interrupts it"
                log.warning(waits, member.config.run.name, since_s)

    def interrupt(self) -> None:
        """Threads end with the process."""

    def left(self) -> list[Path]:
        there = set(self._fleet)
        return [path for path, watched in self._watched.items() if watched in there]

    def is_over(self) -> bool:
        return not any(isinstance(member, Watched) for member in self._fleet)

    def only(self) -> Watched:
        """The run, where it is one."""
        (watched,) = self._watched.values()
        return watched

    def _forget(self, path: Path) -> Watched | None:
        watched = self._watched.pop(path, None)
        if watched is not None:
            self._paths.pop(watched, None)
        return watched

    def _turned(self, watched: Watched) -> None:
        path, last = self._paths.get(watched), watched.last
        if path is not None:
            kind = None if last is None else str(last.verdict.kind)
            self._stands(path, Standing(code=watched.code, held=watched.held, well=watched.well, kind=kind))
