"""Which of several runs a line is about."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["names_its_run", "of_run", "speaking_of"]

_run: ContextVar[str | None] = ContextVar("run", default=None)


@contextmanager
def speaking_of(run: str | None) -> Iterator[None]:
    """Lines of the block, and of the threads it starts, are about this run; None where there is only one."""
    token = _run.set(run)
    try:
        yield
    finally:
        _run.reset(token)


def of_run() -> str:
    """What a line begins with: the run's name, or nothing."""
    run = _run.get()
    return "" if run is None else f"{run}: "


def names_its_run(record: logging.LogRecord) -> bool:
    """A filter that lets everything pass, and has the format know the run."""
    record.of_run = of_run()
    return True
