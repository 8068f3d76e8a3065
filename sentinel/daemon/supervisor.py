"""`sentinel watch`: one daemon, the runs that it watches, its signals, and its status line."""

from __future__ import annotations

import gc
import logging
import resource
import signal
from collections import Counter
from pathlib import Path
from threading import Event
from time import monotonic, strftime

from rich.console import Console
from rich.status import Status

from sentinel.adapters.exposition.exposition import NAME, Exposition
from sentinel.adapters.slurm import Queues
from sentinel.config import Config
from sentinel.daemon.paging import check_pagers
from sentinel.daemon.run_files import Chosen, conflicts, place_of, read, state_dir_of
from sentinel.daemon.scheduler import Fleet, SignalFlag
from sentinel.daemon.sources import SharedSources, source_of
from sentinel.daemon.watched_run import Shared, Watched, run_prefix
from sentinel.plan.look import Look
from sentinel.vocabulary.errors import ConfigError

log = logging.getLogger(__name__)

_BEAT_S = 1.0
_INTERRUPTED = 3  # exit code after a second SIGTERM while a turn hung: another system does not answer

_COLLECTED_AFTER = (100_000, 20, 20)
"""Thresholds of gc.set_threshold. There is little cyclic garbage, and a collection goes through the million objects
of a thousand runs: with the defaults it takes a third of the time."""


def log_to_stderr(*, verbose: bool) -> None:
    """Sends log records to stderr, from INFO on, or from DEBUG on; with the run's name where there are several."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(run)s%(message)s", datefmt="%H:%M:%S")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_with_prefix)


def _with_prefix(record: logging.LogRecord) -> bool:
    record.run = run_prefix()
    return True


def watch(chosen: Chosen, *, observe: bool, once: bool, fleet_dir: Path) -> int:
    """Follows the runs until each has ended or needs a person; returns the exit code, of several the largest.

    SIGTERM and SIGINT end it after the turns under way, and a second one at once; SIGHUP reloads the configurations.
    """
    console = Console(stderr=True, soft_wrap=True)
    stop, end, now, reload, wake = Event(), SignalFlag(), SignalFlag(), SignalFlag(), SignalFlag()
    _on(signal.SIGTERM, end, now, wake)
    _on(signal.SIGINT, end, now, wake)
    _on(signal.SIGHUP, reload, reload, wake)
    configs = _configured(chosen)
    first = next(iter(configs.values()))
    home, labels = (state_dir_of(first), {"run": first.run.name}) if chosen.alone else (fleet_dir.resolve(), {})
    shared = Shared(
        exposition=Exposition(first.metrics, home / NAME, labels, once=once),
        queues=Queues(),
        sources=source_of if chosen.alone else SharedSources(),
        say=lambda line: console.print(f"{strftime('%H:%M:%S')} {run_prefix()}{line}", highlight=False, markup=False),
        stop=stop,
        observe=observe,
        once=once,
        alone=chosen.alone,
    )
    fleet = Fleet(wake)
    daemon = _Daemon(chosen, shared, fleet, configs, alive=home / "alive")
    if not chosen.alone:
        _allow_many_files()
        gc.set_threshold(*_COLLECTED_AFTER)
    with console.status("looking at the run" if chosen.alone else "looking at the runs") as status:
        while len(fleet) and not now.is_set():
            if end.is_set():
                stop.set()
                fleet.end()
                daemon.log_hanging_turns()
            elif reload.is_set():
                reload.clear()
                daemon.reload()
            fleet.round()
            daemon.show(status)
    return daemon.exit_code()


class _Daemon:
    """The runs under watch, by the paths of their configurations."""

    def __init__(
        self, chosen: Chosen, shared: Shared, fleet: Fleet, configs: dict[Path, Config], *, alive: Path
    ) -> None:
        self._chosen = chosen
        self._shared = shared
        self._fleet = fleet
        self._metrics = next(iter(configs.values())).metrics
        self._paths = tuple(configs)
        self._alive = alive
        self._beat_s, self._turns = 0.0, 0
        self._hanging: set[Watched] = set()
        self._watched: dict[Path, Watched] = {}
        for path, config in configs.items():
            self._watch(path, config)

    def reload(self) -> None:
        """Reads the configurations again: applies changes, adds and removes runs; a wrong file changes nothing."""
        try:
            paths = self._chosen.paths() if self._chosen.everything else self._paths
        except ConfigError as error:
            log.error("the old configurations stay in force: %s", error)
            return
        found = read(tuple(sorted(paths, key=lambda path: path not in self._watched)), check_pagers)
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
            log.info("%s was removed: its run is no longer watched", path)
            self._fleet.remove(self._watched.pop(path))
        if right:
            log.info("the configuration was read again" if self._shared.alone else "the configurations were read again")
            self._metrics = next(iter(right.values())).metrics
            self._shared.exposition.change(self._metrics)
        for path, config in right.items():
            watched = self._watched.get(path)
            if watched is None or watched.code is not None:
                self._watch(path, config)
            else:
                watched.reload(config)
                self._fleet.hurry(watched)

    def show(self, status: Status) -> None:
        """Updates the status line, and with several runs the file whose age a liveness probe reads."""
        if not self._shared.alone:
            if monotonic() - self._beat_s < _BEAT_S or self._fleet.turns == self._turns:
                return
            self._beat_s, self._turns = monotonic(), self._fleet.turns
            try:
                self._alive.parent.mkdir(parents=True, exist_ok=True)
                self._alive.touch()
            except OSError as error:
                log.debug("can't touch %s: %s", self._alive, error)
        status.update(self.headline())

    def log_hanging_turns(self) -> None:
        """After SIGTERM: logs once for each run that its turn has not ended."""
        for member, since_s in self._fleet.hanging():
            if member not in self._hanging:
                self._hanging.add(member)
                name = member.config.run.name if member in self._watched.values() else "a removed run"
                waits = "%s: waiting for a turn that has run for %.0f s; a second SIGTERM interrupts it"
                log.warning(waits, name, since_s)

    def headline(self) -> str:
        if self._shared.alone:
            (watched,) = self._watched.values()
            return "looking at the run" if watched.last is None else headline(watched.last)
        kinds = Counter(
            "over" if one.code is not None else str(one.last.verdict.kind) if one.last else "not looked at yet"
            for one in self._watched.values()
        )
        return f"{len(self._watched)} runs: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}"

    def exit_code(self) -> int:
        """The exit code, once all runs have ended or were interrupted. Raises the error that ended the only run."""
        watched = list(self._watched.values())
        if left := [one.config.run.name for one in watched if one in set(self._fleet)]:
            log.error("interrupted in the middle of a turn: %s; the next watch resumes there", ", ".join(left))
            return _INTERRUPTED
        self._shared.exposition.close(well=all(one.well for one in watched))
        if self._shared.alone and watched[0].error is not None:
            raise watched[0].error
        return max((one.code or 0 for one in watched), default=0)

    def _watch(self, path: Path, config: Config) -> None:
        self._watched[path] = Watched(config, self._shared)
        self._fleet.add(self._watched[path])

    def _is_the_same_run(self, path: Path, config: Config) -> bool:
        before = self._watched[path].config if path in self._watched else config
        if (before.run.name, place_of(before)) == (config.run.name, place_of(config)):
            return True
        log.error("%s: [run] name and state_dir can't change while the run is watched", self._stays(path))
        return False

    def _stays(self, path: Path) -> str:
        return "the old configuration stays in force" if path in self._watched else "the run is not watched"


def _configured(chosen: Chosen) -> dict[Path, Config]:
    found = read(chosen.paths(), check_pagers)
    wrong = [*found.wrong.values(), *conflicts(found.configs).values()]
    if wrong:
        raise wrong[0] if len(wrong) == 1 else ConfigError("; ".join(map(str, wrong)))
    return found.configs


def _on(number: signal.Signals, first_time: SignalFlag, again: SignalFlag, wake: SignalFlag) -> None:
    def handle(*_: object) -> None:
        (again if first_time.is_set() else first_time).set()
        wake.set()

    signal.signal(number, handle)


def _allow_many_files() -> None:
    """Raises the limit of open files: each followed log is one, and a shell's limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a unit that forbids the call has LimitNOFILE=
            log.warning("the limit of open files stays at %d: %s", soft, error)


def headline(look: Look) -> str:
    last = look.series.last
    at = f" step {last.global_step}, loss {last.loss:.3f}" if last else ""
    attempt = f"attempt {look.history.latest.number}" if look.history.latest else "no attempt yet"
    return f"{attempt}:{at} · {look.verdict.kind} · {look.verdict.reason}"
