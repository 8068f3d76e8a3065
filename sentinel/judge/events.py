"""What happened in a run, as its readings show it: each finding from its onset to its end, and the alarm that is up."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum

_REMEMBERED_SPIKES = 64


class EventKind(StrEnum):
    SPIKE = "spike"  # The loss left its noise band and came back by itself
    DIVERGENCE = "divergence"  # It did not come back; a slow climb and a permanent offset too
    NAN = "nan"  # The weights are not numbers any more
    PLATEAU = "plateau"  # The loss stopped falling well above where its own trend would have it
    STALLED = "stalled"  # No samples came for a long time
    REGIME_CHANGE = "regime_change"  # A planned change (seqlen, batch, LR, epoch, restart) moved the loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: EventKind
    onset_range: tuple[int, int]  # First step of the episode: earliest and latest that the readings allow
    verdict_step: int  # The step whose sample showed it
    end_step: int | None = None  # The step by which it was over; None while it lasts
    recommend_rollback: bool = False
    reason: str  # A sentence that an on-call person can act on

    @property
    def onset_step(self) -> int:
        return self.onset_range[0]


class Findings:
    def __init__(self) -> None:
        self._events: list[Event] = []
        self._open_at: dict[str, int] = {}  # "alarm" or "plateau" -> which of the events lasts
        self._last_alarm_at: int | None = None
        self.alarm: Event | None = None  # The divergence that lasts, or None
        # (range of the onset, step by which it was back) of the last spikes that came back by themselves.
        self.healed: deque[tuple[tuple[int, int], int]] = deque(maxlen=_REMEMBERED_SPIKES)
        self.slowest_healed_steps = 0  # What the slowest of all of them took

    def events(self, lasting: Event | None = None) -> tuple[Event, ...]:
        return tuple(sorted([*self._events, *([lasting] if lasting else [])], key=lambda e: e.onset_range))

    def spike(self, onset_range: tuple[int, int], end: int, reason: str, *, is_event: bool) -> None:
        self.healed.append((onset_range, end))
        self.slowest_healed_steps = max(self.slowest_healed_steps, end - onset_range[1])
        if is_event:
            self._events.append(spike(onset_range, end, reason))

    def change(self, step: int, what: str) -> None:
        self._events.append(regime_change(step, what))

    def plateau(self, onset_range: tuple[int, int], step: int, reason: str) -> None:
        if "plateau" not in self._open_at:
            self._open_at["plateau"] = len(self._events)
            kind = EventKind.PLATEAU
            self._events.append(Event(kind=kind, onset_range=onset_range, verdict_step=step, reason=reason))

    def end_plateau(self, step: int) -> None:
        self._end("plateau", step)

    def raise_alarm(self, step: int, onset_range: tuple[int, int], reason: str, kind: EventKind) -> None:
        """A divergence is known at the step; one that lasts ends with it. One whose onset lies in a divergence that
        seemed to be over is the same: that goes on."""
        self.end_alarm(step)
        at = self._last_alarm_at
        past = None if at is None else self._events[at]
        over = None if past is None or past.kind is not kind else past.end_step
        if at is not None and past is not None and over is not None and onset_range[0] <= over:
            self._events[at] = replace(past, end_step=None, reason=reason)
        else:
            at = len(self._events)
            event = Event(kind=kind, onset_range=onset_range, verdict_step=step, recommend_rollback=True, reason=reason)
            self._events.append(event)
        self._open_at["alarm"] = self._last_alarm_at = at
        self.alarm = self._events[at]

    def end_alarm(self, step: int) -> None:
        self._end("alarm", step)
        self.alarm = None

    def _end(self, what: str, step: int) -> None:
        at = self._open_at.pop(what, None)
        if at is not None:
            self._events[at] = replace(self._events[at], end_step=step)


def regime_change(step: int, what: str) -> Event:
    kind = EventKind.REGIME_CHANGE
    return Event(kind=kind, onset_range=(step, step), verdict_step=step, end_step=step, reason=what)


def spike(onset_range: tuple[int, int], end: int | None, reason: str) -> Event:
    late = onset_range[1]
    return Event(kind=EventKind.SPIKE, onset_range=onset_range, verdict_step=late, end_step=end, reason=reason)
