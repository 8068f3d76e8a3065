"""`sentinel watch`: the lock, the loop and the line that shows it is alive."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from threading import Event

from rich.console import Console
from rich.status import Status

from sentinel.act.observe import Look
from sentinel.act.watch import Done, Watch
from sentinel.adapters.lock import RunLock
from sentinel.cli import wiring
from sentinel.config import Config
from sentinel.judge.verdict import VerdictKind

__all__ = ["headline", "watch"]

log = logging.getLogger(__name__)


def watch(config: Config, *, observe: bool, once: bool) -> int:
    """Follows the run until it ends or a person is needed; returns the exit code. SIGTERM and SIGINT end it cleanly."""
    policy = replace(config.policy, mode="observe") if observe else config.policy
    near = wiring.neighbours_of(config)
    near.state_dir.mkdir(parents=True, exist_ok=True)
    observer = wiring.observer_of(config, near)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    console = Console(stderr=True)
    watching = Watch(
        near,
        observer,
        wiring.performer_of(config, near, observer),
        policy,
        clock=wiring.clock,
        say=lambda line: console.print(line, highlight=False, markup=False),
    )
    with RunLock(near.state_dir) as lock, console.status("looking at the run") as status:
        log.info("watching %s in mode %s, every %g s", config.run.name, policy.mode, config.watch.poll_interval_s)
        while not stop.is_set():
            done = _turn(watching, status)
            if once or done is not None:
                return _exit_code(watching, done)
            lock.renew()
            stop.wait(config.watch.poll_interval_s)
    return 0


def _turn(watching: Watch, status: Status) -> Done | None:
    done = watching.tick()
    if watching.last is not None:
        status.update(headline(watching.last))
    return done


def _exit_code(watching: Watch, done: Done | None) -> int:
    if done is not None:
        return int(done)
    kind = watching.last.verdict.kind if watching.last else VerdictKind.BLIND
    return int(kind in (VerdictKind.DIVERGED, VerdictKind.STALLED, VerdictKind.DOWN))


def headline(look: Look) -> str:
    """The run in one line."""
    last = look.series.last
    at = f" step {last.global_step}, loss {last.loss:.3f}" if last else ""
    attempt = f"attempt {look.history.latest.number}" if look.history.latest else "no attempt yet"
    return f"{attempt}:{at} · {look.verdict.kind} · {look.verdict.reason}"
