"""`sentinel watch`: the lock, the loop and the line that shows it is alive."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event

from rich.console import Console

from sentinel.act.observe import Look
from sentinel.act.pinning import Pinning
from sentinel.act.recover import Done
from sentinel.act.undo import settle
from sentinel.act.watch import Watch
from sentinel.adapters.lock import RunLock
from sentinel.adapters.own_pins import OwnPins
from sentinel.cli import wiring
from sentinel.config import Config
from sentinel.judge.verdict import VerdictKind
from sentinel.vocabulary.errors import ConfigError, PermanentError, SentinelError

__all__ = ["NOT_WELL", "headline", "watch"]

log = logging.getLogger(__name__)

NOT_WELL = (VerdictKind.DIVERGED, VerdictKind.STALLED, VerdictKind.DOWN)
"""Verdicts that a script is told of by exit code 1; a spike is not among them."""


def watch(load: Callable[[], Config], *, observe: bool, once: bool) -> int:
    """Follows the run until it ends or a person is needed; returns the exit code.

    SIGTERM and SIGINT end it cleanly after the turn that is under way; SIGHUP has the configuration read again.
    """
    console = Console(stderr=True, soft_wrap=True)
    stop, reload, nap = Event(), Event(), Event()
    for number, heard in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, reload)):
        _on(number, heard, nap)
    config = load()
    watching, parts = _assembled(config, console, observe=observe)
    parts.paging.check()
    done = None
    try:
        with RunLock(parts.near.state_dir) as lock, console.status("looking at the run") as status:
            parts.paging.start()
            while not stop.is_set():
                done = _turn(watching)
                parts.paging.follow()
                if watching.last is not None:
                    status.update(headline(watching.last))
                if once or done is not None:
                    break
                lock.renew()
                nap.wait(config.watch.poll_interval_s)
                nap.clear()
                if reload.is_set():
                    reload.clear()
                    parts.paging.finish()
                    config = _reloaded(load, config)
                    watching, parts = _assembled(config, console, observe=observe)
                    parts.paging.start()
    except (PermanentError, ConfigError) as error:
        parts.paging.ended(error, wiring.clock())
        parts.paging.finish(config.paging.last_words_s, or_when=stop)
        raise
    if done is Done.PERSON_NEEDED:  # without the lock: the person may be at work already
        parts.paging.finish(config.paging.last_words_s, or_when=stop)
    else:
        parts.paging.finish()
    return 0 if stop.is_set() and done is None else _exit_code(watching, done)


def _on(number: signal.Signals, heard: Event, nap: Event) -> None:
    def hear(*_: object) -> None:
        heard.set()
        nap.set()

    signal.signal(number, hear)


def _assembled(config: Config, console: Console, *, observe: bool) -> tuple[Watch, wiring.Parts]:
    policy = replace(config.policy, mode="observe") if observe else config.policy
    parts = wiring.assemble(config, policy, say=lambda line: console.print(line, highlight=False, markup=False))
    log.info("watching %s in mode %s, every %g s", config.run.name, policy.mode, config.watch.poll_interval_s)
    pinning = Pinning(parts.near.checkpoints, OwnPins(parts.near.state_dir / "pinned-by-watch.json"), policy)
    undo = partial(settle, near=parts.near, observer=parts.observer, ledger=parts.ledger)
    return Watch(parts.observer, parts.recoverer, pinning, policy, parts.ledger, undo), parts


def _reloaded(load: Callable[[], Config], config: Config) -> Config:
    """The configuration as it is now; the one in force where it can't be read, or is another run's."""
    try:
        new = load()
    except SentinelError as error:
        log.error("the configuration stays as it was: %s", error)
        return config
    if (new.run.name, wiring.state_dir_of(new)) != (config.run.name, wiring.state_dir_of(config)):
        log.error("the configuration stays as it was: [run] name and state_dir can't change under a watch")
        return config
    log.info("the configuration was read again")
    return new


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
