"""Errors of the hook, kept from the training loop; and the error that ended a process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


class Guard:
    """The outer edge of a hook: a hook may lose a sample; it may never lose a step. `with guard("measure the step"): …`
    catches every Exception, counts it, and logs each action's first one."""

    def __init__(self) -> None:
        self.errors = 0  # Errors that were caught
        self.outer: Guard | None = None  # Counts them as well
        self._logged: set[str] = set()

    @contextmanager
    def __call__(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a hook may lose a sample; it may never lose a step
            self.errors += 1
            if self.outer is not None:
                self.outer.errors += 1
            if action not in self._logged:
                self._logged.add(action)
                log.warning("sentinel could not %s (%s: %s); training goes on", action, type(error).__name__, error)

    def warn_once(self, text: str) -> None:
        """Logs what is not measured, which is no error: each sentence once."""
        if text not in self._logged:
            self._logged.add(text)
            log.warning("sentinel: %s; training goes on", text)


def exit_reason() -> str:
    """The reason of an end that an atexit function reports: Python keeps the uncaught error in sys.last_value."""
    error = getattr(sys, "last_value", None)
    return f"error: {type(error).__name__}: {error}" if error else "error: the process ended before the training"
