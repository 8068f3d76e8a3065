"""What happened in a run, as its readings tell it: the judge's findings, each from its onset to its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Event", "EventKind"]


class EventKind(StrEnum):
    """What an event is."""

    SPIKE = "spike"
    """The loss left its noise band and came back by itself."""

    DIVERGENCE = "divergence"
    """It did not come back; a slow climb and a permanent offset too."""

    NAN = "nan"
    """The weights are not numbers any more."""

    PLATEAU = "plateau"
    """The loss stopped falling well above where its own trend would have it."""

    STALLED = "stalled"
    """No samples came for a long time."""

    REGIME_CHANGE = "regime_change"
    """A planned change (sequence length, batch size, learning rate, epoch, restart) moved the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One finding. Steps are global steps."""

    kind: EventKind
    onset_range: tuple[int, int]
    """First step of the episode: earliest and latest that the readings allow."""

    verdict_step: int
    """The step whose sample made the judge say so."""

    end_step: int | None
    """The step by which it was over; None while it lasts."""

    recommend_rollback: bool
    led_by: tuple[str, ...]
    """Signals that left their bands before the loss did, the earliest first; fields of Sample."""

    led_by_steps: tuple[int, ...]
    """How many steps before the onset each of them did."""

    reason: str
    """A sentence that an on-call person can act on."""

    @property
    def onset_step(self) -> int:
        """Early end of the onset."""
        return self.onset_range[0]
