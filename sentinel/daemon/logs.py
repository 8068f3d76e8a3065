"""Lines on stderr, with the run's name where there are several."""

from __future__ import annotations

import logging
from time import strftime

from rich.console import Console

from sentinel.daemon.watched_run import run_prefix
from sentinel.vocabulary.texts import neutral

CONSOLE = Console(stderr=True, soft_wrap=True)


def say_to_stderr(line: str) -> None:
    """What a person is to read of a run."""
    CONSOLE.print(neutral(f"{strftime('%H:%M:%S')} {run_prefix()}{line}"), highlight=False, markup=False)


def log_to_stderr(*, verbose: bool) -> None:
    """Sends log records to stderr, from INFO on, or from DEBUG on; with the run's name where there are several."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_with_prefix)
        handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(run)s%(message)s", datefmt="%H:%M:%S"))


class _Formatter(logging.Formatter):
    """Texts of others in a log do not steer the terminal that it is read on."""

    def format(self, record: logging.LogRecord) -> str:
        return neutral(super().format(record))


def _with_prefix(record: logging.LogRecord) -> bool:
    record.run = run_prefix()
    return True
