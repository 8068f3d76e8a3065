"""The runs that this one is compared with, read now and then: they may still be running themselves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.judge.reference import Reference
from sentinel.vocabulary.errors import SentinelError

__all__ = ["References"]

log = logging.getLogger(__name__)

_READ_AGAIN_AFTER_S = 3600.0
"""A comparison is made four times for each doubling of the steps: it does not get better by reading more often."""


class References:
    """Reads each at the first look, and again once what is held is older than an hour.

    One that can't be read is told in the log and passed over, or stays as it was: a run is not left unwatched since
    its sibling's disk is away.
    """

    def __init__(self, paths: Sequence[Path] = (), read: Callable[[Path], Reference] | None = None) -> None:
        self._paths = paths if read is not None else ()
        self._read = read
        self._held: dict[Path, Reference] = {}
        self._read_unix_s = -math.inf

    def at(self, now_unix_s: float) -> tuple[Reference, ...]:
        """Those that are known, in their order."""
        if self._read is not None and now_unix_s - self._read_unix_s > _READ_AGAIN_AFTER_S:
            self._read_unix_s = now_unix_s
            for path in self._paths:
                try:
                    self._held[path] = self._read(path)
                except (SentinelError, OSError) as error:
                    log.warning("the reference %s can't be read: %s", path, error)
        return tuple(self._held[path] for path in self._paths if path in self._held)
