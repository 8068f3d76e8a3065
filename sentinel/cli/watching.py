"""`sentinel watch`: the lock, the loop and the line that shows it is alive."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from threading import Event

from rich.console import Console
from rich.status import Status

from sentinel.act.observe import Look
from sentinel.act.paging import Paging
from sentinel.act.recover import Done
from sentinel.act.watch import Watch
from sentinel.adapters.lock import RunLock
from sentinel.cli import wiring
from sentinel.config import Config
from sentinel.judge.verdict import VerdictKind
from sentinel.vocabulary.errors import ConfigError, PermanentError, SentinelError

__all__ = ["NOT_WELL", "headline", "watch"]

log = logging.getLogger(__name__)

NOT_WELL = (VerdictKind.DIVERGED, VerdictKind.STALLED, VerdictKind.DOWN)
"""Verdicts that a script is told of by exit code 1; a spike is not among them."""


def watch(config: Config, *, observe: bool, once: bool) -> int:
    """Follows the run until it ends or a person is needed; returns the exit code. SIGTERM and SIGINT end it cleanly."""
    policy = replace(config.policy, mode="observe") if observe else config.policy
    console = Console(stderr=True, soft_wrap=True)
    parts = wiring.assemble(config, policy, say=lambda line: console.print(line, highlight=False, markup=False))
    parts.paging.check()
    watching = Watch(parts.observer, parts.recoverer, policy, parts.ledger)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with RunLock(parts.near.state_dir) as lock, console.status("looking at the run") as status:
            log.info("watching %s in mode %s, every %g s", config.run.name, policy.mode, config.watch.poll_interval_s)
            parts.paging.start()
            pause_s = None if once else config.watch.poll_interval_s
            done = _until_done(watching, parts.paging, stop, lock, status, pause_s=pause_s)
    except (PermanentError, ConfigError) as error:
        parts.paging.ended(error, wiring.clock())
        parts.paging.finish(config.paging.last_words_s, or_when=stop)
        raise
    if done is Done.PERSON_NEEDED:  # without the lock: the person may be at work already
        parts.paging.finish(config.paging.last_words_s, or_when=stop)
    else:
        parts.paging.finish()
    return 0 if stop.is_set() and done is None else _exit_code(watching, done)


def _until_done(
    watching: Watch, paging: Paging, stop: Event, lock: RunLock, status: Status, *, pause_s: float | None
) -> Done | None:
    """Turn after turn, or one where there is no pause; returns why it is over, or None when it was asked to end."""
    while not stop.is_set():
        done = _turn(watching)
        paging.follow()
        if watching.last is not None:
            status.update(headline(watching.last))
        if pause_s is None or done is not None:
            return done
        lock.renew()
        stop.wait(pause_s)
    return None


def _turn(watching: Watch) -> Done | None:
    """One turn; what nobody foresaw is logged and tried again, since a daemon that is gone helps nobody."""
    now_unix_s = wiring.clock()
    try:
        return watching.tick(now_unix_s)
    except SentinelError:
        raise
    except Exception as error:
        log.exception("this turn failed; the next one looks again")
        watching.failed(error, now_unix_s)
        return None


def _exit_code(watching: Watch, done: Done | None) -> int:
    if done is not None:
        return int(done)
    return int(watching.last is None or watching.last.verdict.kind in NOT_WELL)


def headline(look: Look) -> str:
    """The run in one line."""
    last = look.series.last
    at = f" step {last.global_step}, loss {last.loss:.3f}" if last else ""
    attempt = f"attempt {look.history.latest.number}" if look.history.latest else "no attempt yet"
    return f"{attempt}:{at} · {look.verdict.kind} · {look.verdict.reason}"
