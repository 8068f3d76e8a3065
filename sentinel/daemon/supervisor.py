"""`sentinel watch`: one daemon, the runs that it watches, its signals, and its status line."""

from __future__ import annotations

import logging
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic

from rich.status import Status
from rich.text import Text

from sentinel.act.observation import Observation
from sentinel.adapters.exposition.exposition import NAME, Exposition
from sentinel.adapters.slurm import Queues
from sentinel.config import Config
from sentinel.config.run_files import Chosen, conflicts, read, state_dir_of
from sentinel.daemon.candidates import RunRoom
from sentinel.daemon.logs import CONSOLE, say_to_stderr
from sentinel.daemon.paging import check_pagers
from sentinel.daemon.places import InProcess, WatchPlace
from sentinel.daemon.pool import Pool
from sentinel.daemon.run_table import RunTable
from sentinel.daemon.scheduler import Fleet, SignalFlag
from sentinel.daemon.sources import SharedSources, source_of
from sentinel.daemon.watched_run import Shared
from sentinel.daemon.wide import allow_many_files, collect_rarely, cores
from sentinel.daemon.worker import INTERRUPTED
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.texts import neutral

log = logging.getLogger(__name__)

_BEAT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of the command line."""

    observe: bool = False
    once: bool = False
    verbose: bool = False
    workers: int | None = None  # worker processes at most, with --all; None: one per core
    most: int | None = None  # runs at most, with --all; None: as many as there are


@dataclass(frozen=True, slots=True)
class _Signals:
    end: SignalFlag = field(default_factory=SignalFlag)  # SIGTERM or SIGINT
    now: SignalFlag = field(default_factory=SignalFlag)  # a second one
    reload: SignalFlag = field(default_factory=SignalFlag)  # SIGHUP
    wake: SignalFlag = field(default_factory=SignalFlag)

    def listen(self) -> None:
        _on(signal.SIGTERM, self.end, self.now, self.wake)
        _on(signal.SIGINT, self.end, self.now, self.wake)
        _on(signal.SIGHUP, self.reload, self.reload, self.wake)


def watch(chosen: Chosen, options: Options, *, fleet_dir: Path) -> int:
    """Follows the runs until each has ended or needs a person; returns the exit code, of several the largest.

    SIGTERM and SIGINT end it after the turns under way, and a second one at once; SIGHUP reloads the configurations.
    """
    signals = _Signals()
    signals.listen()
    configs = _configured(chosen)
    first = next(iter(configs.values()))
    home, labels = (state_dir_of(first), {"run": first.run.name}) if chosen.alone else (fleet_dir.resolve(), {})
    exposition = Exposition(first.metrics, home / NAME, labels, once=options.once)
    fleet = Fleet(signals.wake)
    room = RunRoom(options.most if chosen.everything else None)
    table = RunTable(chosen, fleet, exposition, signals.wake, room=room, once=options.once)
    place = _place(chosen, options, fleet, exposition, table, signals.wake)
    if not chosen.alone:
        allow_many_files()
        collect_rarely()
    table.begin(place, configs)
    status: AbstractContextManager[Status | None] = nullcontext()
    if not isinstance(place, Pool):  # the lines of workers would break into it
        status = CONSOLE.status("looking at the run" if chosen.alone else "looking at the runs")
    daemon = _Daemon(fleet, table, place, signals, alive=None if chosen.alone else home / "alive")
    with status as line:
        daemon.run(line)
    if signals.now.is_set() and (left := place.left()):
        names = ", ".join(sorted(table.names(left)))
        log.error("interrupted in the middle of a turn: %s; the next watch resumes there", names)
        return INTERRUPTED
    exposition.close(well=table.well())
    if chosen.alone and isinstance(place, InProcess) and (error := place.only().error) is not None:
        raise error
    return table.exit_code()


def _place(
    chosen: Chosen, options: Options, fleet: Fleet, exposition: Exposition, table: RunTable, wake: SignalFlag
) -> WatchPlace:
    workers = options.workers if options.workers is not None else cores()
    if chosen.everything and workers > 1 and not options.once:
        passed = [word for word, given in (("--observe", options.observe), ("--verbose", options.verbose)) if given]
        return Pool(workers, tuple(passed), exposition, table.stands, wake)
    shared = Shared(
        exposition=exposition,
        queues=Queues(),
        sources=source_of if chosen.alone else SharedSources(),
        say=say_to_stderr,
        stop=Event(),
        observe=options.observe,
        once=options.once,
        alone=chosen.alone,
    )
    return InProcess(fleet, shared, table.stands)


class _Daemon:
    """The main thread's loop."""

    def __init__(
        self, fleet: Fleet, table: RunTable, place: WatchPlace, signals: _Signals, *, alive: Path | None
    ) -> None:
        self._fleet = fleet
        self._table = table
        self._place = place
        self._signals = signals
        self._alive = alive
        self._beat_s, self._turns = 0.0, 0

    def run(self, status: Status | None) -> None:
        """Until the watch of each run has ended, or the daemon was interrupted."""
        signals, over = self._signals, False
        while not (over and self._place.is_over()):
            self._table.settle()
            over = signals.end.is_set() or self._table.is_over()
            if signals.now.is_set():
                self._place.interrupt()
                self._table.settle()
                return
            if over:
                self._place.end()
                self._fleet.end()
            elif signals.reload.is_set():
                signals.reload.clear()
                self._table.reload()
            self._place.tend()
            if over and not len(self._fleet) and not self._place.is_over():
                self._signals.wake.wait(_BEAT_S)
            self._fleet.round()
            self._show(status)
        self._table.settle()

    def _show(self, status: Status | None) -> None:
        """Updates the status line, and with several runs the file whose age a liveness probe reads."""
        if self._alive is not None:
            if monotonic() - self._beat_s < _BEAT_S or self._table.turns == self._turns:
                return
            self._beat_s, self._turns = monotonic(), self._table.turns
            try:
                self._alive.parent.mkdir(parents=True, exist_ok=True)
                self._alive.touch()
            except OSError as error:
                log.debug("can't touch %s: %s", self._alive, error)
        if status is not None:
            alone = self._place.only() if self._alive is None and isinstance(self._place, InProcess) else None
            line = self._table.headline() if alone is None else headline(alone.last)
            status.update(Text(neutral(line)))  # a trainer's words are no markup


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


def headline(look: Observation | None) -> str:
    if look is None:
        return "looking at the run"
    last = look.series.last
    at = f" step {last.global_step}, loss {last.loss:.3f}" if last else ""
    attempt = f"attempt {look.history.latest.number}" if look.history.latest else "no attempt yet"
    return f"{attempt}:{at} · {look.verdict.kind} · {look.verdict.reason}"
