"""Log lines on stderr; where one daemon watches several runs, each line begins with the run's name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_run: ContextVar[str | None] = ContextVar("run", default=None)


@contextmanager
def run_prefixed(run: str | None) -> Iterator[None]:
    """Prefixes the lines of the block, and of the threads that it starts, with the run's name; None adds no prefix."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def run_prefix() -> str:
    """`NAME: ` inside run_prefixed(NAME), else the empty string."""
    run = _run.get()
    return "" if run is None else f"{run}: "


def log_to_stderr(*, verbose: bool) -> None:
    """Sends log records to stderr, from INFO on, or from DEBUG on."""
    level = logging.DEBUG if verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(run)s%(message)s", datefmt="%H:%M:%S")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_with_prefix)


def _with_prefix(record: logging.LogRecord) -> bool:
    record.run = run_prefix()
    return True
