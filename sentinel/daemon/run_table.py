"""The runs of a daemon by the paths of their configurations: which it watches, which others do, and how they stand."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from sentinel.adapters.exposition.exposition import Exposition
from sentinel.config import Config
from sentinel.config.run_files import Chosen, conflicts, place_of, read
from sentinel.daemon.candidates import Candidate, RunRoom
from sentinel.daemon.folder_check import FolderCheck
from sentinel.daemon.paging import check_pagers
from sentinel.daemon.places import Standing, WatchPlace
from sentinel.daemon.scheduler import Fleet, SignalFlag
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    config: Config
    candidate: Candidate | None = None  # while it is not watched here, or not yet
    standing: Standing = field(default_factory=Standing)


class RunTable:
    """Its methods are called by the main thread, but for `stands`, which any thread may call."""

    def __init__(
        self, chosen: Chosen, fleet: Fleet, exposition: Exposition, wake: SignalFlag, *, room: RunRoom, once: bool
    ) -> None:
        self._chosen = chosen
        self._fleet = fleet
        self._exposition = exposition
        self._wake = wake
        self._room = room
        self._asks_first = not (chosen.alone or once)  # whether a lock that is held is waited for
        self._runs: dict[Path, _Run] = {}
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting = 0  # candidates
        self.turns = 0  # completed so far, of all runs

    def begin(self, place: WatchPlace, configs: dict[Path, Config]) -> None:
        self._place = place
        self._metrics = next(iter(configs.values())).metrics
        paths = list(configs)
        if self._room.most is not None:  # daemons that begin together do not ask for the same runs
            random.shuffle(paths)
        for path in paths:
            self._add(path, configs[path])
        if self._chosen.everything and self._asks_first:
            self._fleet.add(FolderCheck(self._chosen, tuple(configs), self._tell_paths))

    def stands(self, path: Path, standing: Standing) -> None:
        """After each turn of a run."""
        self._tell(lambda: self._note(path, standing))

    def settle(self) -> None:
        """Takes in what has happened since the last call."""
        while True:
            try:
                news = self._news.get_nowait()
            except Empty:
                return
            news()

    def is_over(self) -> bool:
        """Whether the watch of each run has ended."""
        return all(run.standing.code is not None for run in self._runs.values())

    def reload(self) -> None:
        """Reads the configurations again: applies changes, adds and removes runs; a wrong file changes nothing."""
        try:
            paths = self._chosen.paths() if self._chosen.everything else tuple(self._runs)
        except ConfigError as error:
            log.error("the old configurations stay in force: %s", error)
            return
        right = self._read(paths, paths)
        self._remove_all_but(paths)
        if right:
            log.info("the configuration was read again" if self._chosen.alone else "the configurations were read again")
            self._metrics = next(iter(right.values())).metrics
            self._exposition.change(self._metrics)
        for path, config in right.items():
            self._apply(path, config)

    def headline(self) -> str:
        kinds = Counter(_in_a_word(run) for run in self._runs.values())
        return f"{len(self._runs)} runs: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"

    def names(self, paths: Iterable[Path]) -> list[str]:
        return [self._runs[path].config.run.name if path in self._runs else "a removed run" for path in paths]

    def well(self) -> bool:
        """Whether each watch that has ended did so as it should."""
        return all(run.standing.well for run in self._runs.values())

    def exit_code(self) -> int:
        return max((run.standing.code or 0 for run in self._runs.values()), default=0)

    def _take_paths(self, paths: tuple[Path, ...]) -> None:
        """Another set of names is in the folder; what was read already stays as it was read."""
        right = self._read(paths, tuple(path for path in paths if path not in self._runs))
        self._remove_all_but(paths)
        for path, config in right.items():
            log.info("%s was added", path)
            self._apply(path, config)

    def _read(self, paths: tuple[Path, ...], again: tuple[Path, ...]) -> dict[Path, Config]:
        """The configurations of `again` that are right, beside those of `paths` that stay as they are."""
        found = read(tuple(sorted(again, key=lambda path: path not in self._runs)), check_pagers)
        same = {path: config for path, config in found.configs.items() if self._is_the_same_run(path, config)}
        stay = {
            path: run.config
            for path, run in self._runs.items()
            if path in set(paths) and path not in same and run.standing.code is None
        }
        wrong = found.wrong | conflicts(same, self._metrics, stay)
        for path, why in wrong.items():
            log.error("%s: %s", self._stays(path), why)
        return {path: config for path, config in same.items() if path not in wrong}

    def _apply(self, path: Path, config: Config) -> None:
        run = self._runs.get(path)
        if run is None or run.standing.code is not None:
            self._add(path, config)
        elif run.candidate is not None:
            run.config = run.candidate.config = config
        else:
            run.config = config
            self._place.put(path, config)

    def _add(self, path: Path, config: Config) -> None:
        self._runs[path] = run = _Run(config)
        if self._asks_first:
            self._wait(path, run)
        else:
            self._place.put(path, config)

    def _wait(self, path: Path, run: _Run) -> None:
        self._waiting += 1
        run.candidate = Candidate(
            run.config,
            self._room,
            free=lambda candidate: self._tell(lambda: self._begin_watch(path, candidate)),
            others=lambda: self._waiting,
        )
        self._fleet.add(run.candidate)

    def _begin_watch(self, path: Path, candidate: Candidate) -> None:
        self._waiting -= 1
        run = self._runs.get(path)
        if run is None or run.candidate is not candidate:  # it was removed meanwhile
            self._room.give_back()
            return
        run.candidate, run.standing = None, Standing()
        self._place.put(path, run.config)

    def _note(self, path: Path, standing: Standing) -> None:
        self.turns += 1
        run = self._runs.get(path)
        if run is None or run.candidate is not None:
            return
        over = standing.held or standing.code is not None
        if over and self._asks_first and run.standing.code is None:
            self._room.give_back()
            self._place.remove(path)
        run.standing = standing
        if standing.held:
            self._wait(path, run)

    def _remove_all_but(self, paths: tuple[Path, ...]) -> None:
        for path in set(self._runs) - set(paths):
            log.info("%s was removed: its run is no longer watched", path)
            run = self._runs.pop(path)
            if run.candidate is not None:
                self._waiting -= 1
                self._fleet.remove(run.candidate)
                continue
            if self._asks_first and run.standing.code is None:
                self._room.give_back()
            self._place.remove(path)

    def _tell_paths(self, paths: tuple[Path, ...]) -> None:
        self._tell(lambda: self._take_paths(paths))

    def _tell(self, news: Callable[[], None]) -> None:
        self._news.put(news)
        self._wake.set()

    def _is_the_same_run(self, path: Path, config: Config) -> bool:
        before = self._runs[path].config if path in self._runs else config
        if (before.run.name, place_of(before)) == (config.run.name, place_of(config)):
            return True
        log.error("%s: [run] name and state_dir can't change while the run is watched", self._stays(path))
        return False

    def _stays(self, path: Path) -> str:
        return "the old configuration stays in force" if path in self._runs else "the run is not watched"


def _in_a_word(run: _Run) -> str:
    if run.candidate is not None:
        return "not looked at yet" if run.candidate.holder is None else "watched by another sentinel"
    return "over" if run.standing.code is not None else run.standing.kind or "not looked at yet"
