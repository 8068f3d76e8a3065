"""`sentinel watch`: one daemon, the runs that it watches, and the line that shows it is alive."""

from __future__ import annotations

import gc
import logging
import resource
import signal
from collections import Counter
from pathlib import Path
from threading import Event
from time import monotonic

from rich.console import Console
from rich.status import Status

from sentinel.adapters.exposition.announcement import NAME
from sentinel.adapters.exposition.exposition import Exposition
from sentinel.adapters.slurm import Queues
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.daemon.choosing import Chosen, conflicts, place_of, read
from sentinel.daemon.run_labels import of_run
from sentinel.daemon.scheduler import Fleet, Member
from sentinel.daemon.shared_sources import SharedSources
from sentinel.daemon.signal_flag import Bell
from sentinel.daemon.watched_run import Company, Watched
from sentinel.plan.look import Look
from sentinel.vocabulary.errors import ConfigError

__all__ = ["headline", "watch"]

log = logging.getLogger(__name__)

_BEAT_S = 1.0

_LEFT = 3
"""Exit code of who was told twice to end while a turn hung: a neighbour does not answer."""

_COLLECTED_AFTER = (100_000, 20, 20)
"""After how many new objects Python looks for garbage that refers to itself, of which there is little. It goes through
a thousand runs' million objects for it, and by default so often that a third of the time goes there."""


def watch(chosen: Chosen, *, observe: bool, once: bool, fleet_dir: Path) -> int:
    """Follows the runs until each has ended or needs a person; returns the exit code, of several the largest.

    SIGTERM and SIGINT end it cleanly after the turns that are under way, and at once when they come again; SIGHUP has
    the configurations read again.
    """
    console = Console(stderr=True, soft_wrap=True)
    stop, asked, now, reload, nap = Event(), Bell(), Bell(), Bell(), Bell()
    for number, heard, again in (
        (signal.SIGTERM, asked, now),
        (signal.SIGINT, asked, now),
        (signal.SIGHUP, reload, reload),
    ):
        _on(number, heard, again, nap)
    configs = _configured(chosen)
    first = next(iter(configs.values()))
    home, labels = (wiring.state_dir_of(first), {"run": first.run.name}) if chosen.alone else (fleet_dir.resolve(), {})
    company = Company(
        exposition=Exposition(first.metrics, home / NAME, labels, once=once),
        queues=Queues(),
        sources=wiring.source_of if chosen.alone else SharedSources(),
        say=lambda line: console.print(f"{of_run()}{line}", highlight=False, markup=False),
        stop=stop,
        observe=observe,
        once=once,
        alone=chosen.alone,
    )
    fleet = Fleet(nap)
    daemon = _Daemon(chosen, company, fleet, configs, alive=home / "alive")
    if not chosen.alone:
        _allow_many_files()
        gc.set_threshold(*_COLLECTED_AFTER)
    with console.status("looking at the run" if chosen.alone else "looking at the runs") as status:
        while len(fleet) and not now.is_set():
            if asked.is_set():
                stop.set()
                fleet.end()
                daemon.waits()
            elif reload.is_set():
                reload.clear()
                daemon.reload()
            fleet.round()
            daemon.told(status)
    return daemon.ended()


class _Daemon:
    """Its runs, by their configurations' files."""

    def __init__(
        self, chosen: Chosen, company: Company, fleet: Fleet, configs: dict[Path, Config], *, alive: Path
    ) -> None:
        self._chosen = chosen
        self._company = company
        self._fleet = fleet
        self._metrics = next(iter(configs.values())).metrics
        self._paths = tuple(configs)
        self._alive = alive
        self._told_s, self._turns = 0.0, 0
        self._waits_for: set[Member] = set()
        self._watched: dict[Path, Watched] = {}
        for path, config in configs.items():
            self._take_up(path, config)

    def reload(self) -> None:
        """Reads all again: what is wrong stays as it was, what has come is taken up, what is gone is let go."""
        try:
            paths = self._chosen.paths() if self._chosen.everything else self._paths
        except ConfigError as error:
            log.error("the configurations stay as they were: %s", error)
            return
        found = read(tuple(sorted(paths, key=lambda path: path not in self._watched)), wiring.check_pagers)
        same = {path: config for path, config in found.configs.items() if self._is_the_same_run(path, config)}
        stay = {
            path: one.config
            for path, one in self._watched.items()
            if path in paths and path not in same and one.code is None
        }
        wrong = found.wrong | conflicts(same, self._metrics, stay)
        for path, why in wrong.items():
            log.error("%s: %s", self._stays(path), why)
        right = {path: config for path, config in same.items() if path not in wrong}
        for path in set(self._watched) - set(paths):
            log.info("%s is gone: its run is let go", path)
            self._fleet.let_go(self._watched.pop(path))
        if right:
            log.info(
                "the configuration was read again" if self._company.alone else "the configurations were read again"
            )
            self._metrics = next(iter(right.values())).metrics
            self._company.exposition.change(self._metrics)
        for path, config in right.items():
            watched = self._watched.get(path)
            if watched is None or watched.code is not None:
                self._take_up(path, config)
            else:
                watched.reload(config)
                self._fleet.hurry(watched)

    def told(self, status: Status) -> None:
        """Shows that it is alive: to the person at the terminal, and among several runs to a probe."""
        if not self._company.alone:
            if monotonic() - self._told_s < _BEAT_S or self._fleet.turns == self._turns:
                return
            self._told_s, self._turns = monotonic(), self._fleet.turns
            _beat(self._alive)
        status.update(self.headline())

    def waits(self) -> None:
        """After SIGTERM: says once of each run that its turn has not ended."""
        for member, since_s in self._fleet.waited_for():
            if member not in self._waits_for:
                self._waits_for.add(member)
                name = next((one.config.run.name for one in self._watched.values() if one is member), "a run let go")
                log.warning(
                    "%s: its turn is under way for %.0f s and is waited for; another SIGTERM ends it as it is",
                    name,
                    since_s,
                )

    def headline(self) -> str:
        """All of it in one line."""
        if self._company.alone:
            (watched,) = self._watched.values()
            return "looking at the run" if watched.last is None else headline(watched.last)
        kinds = Counter(map(_kind, self._watched.values()))
        return f"{len(self._watched)} runs: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"

    def ended(self) -> int:
        """All have ended, or are left as they are. Raises what has ended the only one."""
        watched = list(self._watched.values())
        if left := [one.config.run.name for one in watched if one in set(self._fleet)]:
            log.error("left in the middle of a turn: %s; the next watch takes it up from there", ", ".join(left))
            return _LEFT
        self._company.exposition.close(well=all(one.well for one in watched))
        if self._company.alone and watched[0].error is not None:
            raise watched[0].error
        return max((one.code or 0 for one in watched), default=0)

    def _take_up(self, path: Path, config: Config) -> None:
        self._watched[path] = Watched(config, self._company)
        self._fleet.take_up(self._watched[path])

    def _is_the_same_run(self, path: Path, config: Config) -> bool:
        before = self._watched.get(path)
        if before is None or _identity(before.config) == _identity(config):
            return True
        log.error("%s: [run] name and state_dir can't change under a watch", self._stays(path))
        return False

    def _stays(self, path: Path) -> str:
        return "the configuration stays as it was" if path in self._watched else "a run that is not watched"


def _kind(watched: Watched) -> str:
    if watched.code is not None:
        return "over"
    look = watched.last
    return "not looked at yet" if look is None else str(look.verdict.kind)


def _configured(chosen: Chosen) -> dict[Path, Config]:
    """ConfigError with all that is wrong."""
    found = read(chosen.paths(), wiring.check_pagers)
    wrong = [*found.wrong.values(), *conflicts(found.configs).values()]
    if wrong:
        raise wrong[0] if len(wrong) == 1 else ConfigError("; ".join(map(str, wrong)))
    return found.configs


def _identity(config: Config) -> tuple[str, Path]:
    return config.run.name, place_of(config)


def _on(number: signal.Signals, heard: Bell, again: Bell, nap: Bell) -> None:
    def hear(*_: object) -> None:
        (again if heard.is_set() else heard).set()
        nap.set()

    signal.signal(number, hear)


def _allow_many_files() -> None:
    """A followed log is an open file, and a shell's limit is often 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a unit that forbids the call has LimitNOFILE=
            log.warning("it stays at %d open files: %s", soft, error)


def _beat(path: Path) -> None:
    """Its age says since when no turn was made, for a probe."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        log.debug("%s can't be touched: %s", path, error)


def headline(look: Look) -> str:
    """The run in one line."""
    last = look.series.last
    at = f" step {last.global_step}, loss {last.loss:.3f}" if last else ""
    attempt = f"attempt {look.history.latest.number}" if look.history.latest else "no attempt yet"
    return f"{attempt}:{at} · {look.verdict.kind} · {look.verdict.reason}"
