"""Keeps the last checkpoint that was saved in health out of reach of retention: a rollback may need it."""

from __future__ import annotations

import logging

from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.state_files import OwnPins
from sentinel.vocabulary.errors import SentinelError

__all__ = ["Pinning"]

log = logging.getLogger(__name__)

_MOST = 2
"""Pins of the watch's own: each may hold a whole checkpoint's bytes once retention has deleted the original."""


class Pinning:
    """Pins the checkpoint that a turn names, and lets the one before it go where that loses nothing."""

    def __init__(self, checkpoints: Checkpoints, own: OwnPins) -> None:
        self._checkpoints = checkpoints
        self._own = own
        self._pinned: str | None = None
        self._last_warning: str | None = None

    def keep(self, tag: str) -> None:
        """What goes wrong is said once and never stops the watch: a pin is a safeguard, not a duty."""
        if tag == self._pinned:
            return
        try:
            self._change_over(tag)
        except (SentinelError, OSError) as error:
            self._warn(f"{tag} is not pinned: {error}")
        self._pinned = tag

    def _change_over(self, tag: str) -> None:
        pins = self._checkpoints.pins
        others = [old for old in self._own.read() if old != tag]  # a person's own pins are not ours to let go
        kept = [old for old in others if old in pins.tags() and not pins.let_go(old)]
        if len(kept) >= _MOST:
            self._warn(
                f"{tag} is not pinned: {', '.join(kept)} live on only as pins; `sentinel pin --release TAG` ends that"
            )
            return
        self._own.write([*kept, tag])
        pins.pin(tag)
        log.debug("%s is pinned", tag)

    def _warn(self, line: str) -> None:
        if line != self._last_warning:
            self._last_warning = line
            log.warning("%s", line)
