"""The checks of `sentinel doctor`: tries what a recovery needs, and writes to scratch folders of its own only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sentinel.config import Config
from sentinel.daemon.doctor.finding import Finding
from sentinel.daemon.doctor.folders import save_folder, state_folder, tensorboard
from sentinel.daemon.doctor.jobs import account_and_machine, launcher
from sentinel.daemon.doctor.readings import configuration, journal, ladder, paging
from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import ConfigError, SentinelError, TemporaryError

Check = Callable[[Config], Iterator[Finding]]

_BEFORE_ACTING: tuple[Check, ...] = (state_folder, save_folder, account_and_machine, tensorboard, launcher)
_CHECKS: tuple[Check, ...] = (configuration, *_BEFORE_ACTING[:-1], journal, ladder, launcher, paging)


def examine(config: Config) -> list[Finding]:
    """The findings of all checks."""
    return [finding for check in _CHECKS for finding in _run(check, config)]


def check_before_acting(config: Config) -> None:
    """Raises ConfigError with the BAD findings on folders, account, machine and launcher.

    Findings that may pass by themselves (a controller that does not answer, too little space, a torn `latest`, a
    pause) are left to the watch, as are the readings and the ladder: a journal may be long, and the watch reads it.
    """
    findings = [finding for check in _BEFORE_ACTING for finding in _run(check, config)]
    wrong = [f"{f.what}: {f.sentence}" for f in findings if f.answer == "bad" and not f.passes]
    if wrong:
        raise ConfigError(
            f"mode is {config.policy.mode}, and `sentinel doctor` finds BAD: {'; '.join(wrong)}. "
            "The run is not watched; `sentinel watch --observe` watches it without acting"
        )


def _run(check: Check, config: Config) -> Iterator[Finding]:
    try:
        with os_errors_named("a file of the run"):
            yield from check(config)
    except SentinelError as error:
        yield Finding("bad", check.__name__.replace("_", " "), str(error), passes=isinstance(error, TemporaryError))
