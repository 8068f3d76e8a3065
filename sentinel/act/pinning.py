"""Keeps the last checkpoint that was saved in health out of reach of retention: a rollback may need it."""

from __future__ import annotations

import logging

from sentinel.act.observe import Look
from sentinel.adapters.checkpoints import Checkpoints
from sentinel.adapters.own_pins import OwnPins
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.observation import Checkpoint
from sentinel.plan.policy import Policy
from sentinel.vocabulary.errors import SentinelError

__all__ = ["Pinning"]

log = logging.getLogger(__name__)

_MOST = 2
"""Pins of the watch's own: each may hold a whole checkpoint's bytes once retention has deleted the original."""


class Pinning:
    """Pins the newest healthy checkpoint, and lets the one before it go where that loses nothing."""

    def __init__(self, checkpoints: Checkpoints, own: OwnPins, policy: Policy) -> None:
        self._checkpoints = checkpoints
        self._own = own
        self._policy = policy
        self._pinned: str | None = None
        self._said: str | None = None

    def keep(self, look: Look) -> None:
        """One turn. What goes wrong is said once and never stops the watch: a pin is a safeguard, not a duty."""
        if self._policy.mode == "observe" or not self._policy.pin_last_healthy:
            return
        healthy = self._last_healthy(look)
        if healthy is None or healthy.tag == self._pinned:
            return
        try:
            self._change_over(healthy.tag)
        except (SentinelError, OSError) as error:
            self._say(f"{healthy.tag} is not pinned: {error}")
        self._pinned = healthy.tag

    def _last_healthy(self, look: Look) -> Checkpoint | None:
        """The newest whole checkpoint that the run has left behind by the margin, in health."""
        well = look.verdict.kind in (VerdictKind.HEALTHY, VerdictKind.WARMING_UP, VerdictKind.FINISHED)
        if not well or look.series.last is None or look.run.open_incident is not None:
            return None
        limit = look.series.last.global_step - self._policy.margin_steps
        old = [c for c in look.run.checkpoints if c.complete and not c.only_pinned and c.global_step <= limit]
        return old[-1] if old else None

    def _change_over(self, tag: str) -> None:
        pins = self._checkpoints.pins
        others = [old for old in self._own.read() if old != tag]  # a person's own pins are not ours to let go
        kept = [old for old in others if old in pins.tags() and not pins.let_go(old)]
        if len(kept) >= _MOST:
            self._say(
                f"{tag} is not pinned: {', '.join(kept)} live on only as pins; `sentinel pin --release TAG` ends that"
            )
            return
        self._own.write([*kept, tag])
        pins.pin(tag)
        log.debug("%s is pinned", tag)

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            log.warning("%s", line)
