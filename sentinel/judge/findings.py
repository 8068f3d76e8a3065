"""What was found so far: the alarm that is up, and the events, each from its onset to its end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from sentinel.judge.episode import Episode
from sentinel.judge.events import Event, EventKind
from sentinel.judge.leading import Leading
from sentinel.judge.schedule_changes import Change
from sentinel.judge.trend import Lag

__all__ = ["Alarm", "Findings"]

_REMEMBERED_SPIKES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Something that will not come back by itself."""

    step: int
    """The step at which it was known."""

    onset_range: tuple[int, int]
    """The first step of the episode: earliest and latest that it can have been."""

    led_by: tuple[str, ...]
    """Signals that left their band before the onset, the earliest first."""

    led_by_steps: tuple[int, ...]
    """How many steps before the late end of the onset each of them did."""

    reason: str
    kind: EventKind = EventKind.DIVERGENCE


class Findings:
    """Keeps one line for each event; `leading` says what moved before an onset."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._events: list[Event] = []
        self._alarm_at: int | None = None
        self._last_alarm_at: int | None = None
        self._lag_at: int | None = None
        self.alarm: Alarm | None = None
        """The divergence that lasts, or None."""
        self.healed: deque[tuple[tuple[int, int], int]] = deque(maxlen=_REMEMBERED_SPIKES)
        """(range of the onset, step by which it was back) of the last spikes that came back by themselves."""
        self.slowest_healed_steps = 0
        """What the slowest of all of them took."""

    def events(self, episode: Episode | None) -> tuple[Event, ...]:
        """All of them, by onset; with the episode that is under way, which has no end yet."""
        lasting = [] if episode is None or self.alarm is not None else [self._spike(episode, None)]
        return tuple(sorted([*self._events, *lasting], key=lambda e: e.onset_range))

    def spike(self, episode: Episode, step: int) -> None:
        """The episode has come back by itself; that was seen at the step."""
        end = episode.back_step if episode.back_step is not None else step
        self.healed.append((episode.onset_range, end))
        self.slowest_healed_steps = max(self.slowest_healed_steps, end - episode.onset_range[1])
        if episode.outside:
            self._events.append(self._spike(episode, end))

    def change(self, change: Change) -> None:
        """A planned change that is worth a line."""
        at = (change.step, change.step)
        self._events.append(_quiet(EventKind.REGIME_CHANGE, at, change.step, change.step, change.what))

    def lag(self, lag: Lag | None, step: int) -> None:
        """The run is slower than it should be: said once for as long as it lasts. None: it is not, or no more."""
        if lag is None and self._lag_at is not None:
            self._events[self._lag_at] = replace(self._events[self._lag_at], end_step=step)
            self._lag_at = None
        elif lag is not None and self._lag_at is None:
            self._lag_at = len(self._events)
            since = (lag.since_step, lag.since_step)
            self._events.append(_quiet(EventKind.PLATEAU, since, step, None, lag.reason))

    def raise_alarm(self, step: int, onset_range: tuple[int, int], reason: str, kind: EventKind) -> None:
        """A divergence is known at the step. One that lasts ends with it: this one is worse.

        One whose onset lies in a divergence that was thought over is the same: that goes on.
        """
        self.end_alarm(step)
        if self._last_alarm_at is not None and self._reopened(self._last_alarm_at, onset_range, reason, kind):
            return
        led = self._leading.ahead_of(onset_range)
        names, steps = tuple(name for name, _ in led), tuple(ahead for _, ahead in led)
        self.alarm = Alarm(
            step=step, onset_range=onset_range, led_by=names, led_by_steps=steps, reason=reason, kind=kind
        )
        self._alarm_at = self._last_alarm_at = len(self._events)
        self._events.append(
            Event(
                kind=kind,
                onset_range=onset_range,
                verdict_step=step,
                end_step=None,
                recommend_rollback=True,
                led_by=names,
                led_by_steps=steps,
                reason=reason,
            )
        )

    def _reopened(self, at: int, onset_range: tuple[int, int], reason: str, kind: EventKind) -> bool:
        past = self._events[at]
        if past.kind is not kind or past.end_step is None or onset_range[0] > past.end_step:
            return False
        self._events[at] = replace(past, end_step=None, reason=reason)
        self._alarm_at = at
        self.alarm = Alarm(
            step=past.verdict_step,
            onset_range=past.onset_range,
            led_by=past.led_by,
            led_by_steps=past.led_by_steps,
            reason=reason,
            kind=kind,
        )
        return True

    def end_alarm(self, step: int) -> None:
        """What was a divergence is over: the loss is back, or nothing compares with it any more."""
        if self._alarm_at is not None:
            self._events[self._alarm_at] = replace(self._events[self._alarm_at], end_step=step)
        self.alarm = self._alarm_at = None

    def _spike(self, episode: Episode, end: int | None) -> Event:
        led = self._leading.ahead_of(episode.onset_range)
        over = f"back by itself at step {end}" if end is not None else "waiting whether it comes back by itself"
        return Event(
            kind=EventKind.SPIKE,
            onset_range=episode.onset_range,
            verdict_step=episode.onset_range[1],
            end_step=end,
            recommend_rollback=False,
            led_by=tuple(name for name, _ in led),
            led_by_steps=tuple(ahead for _, ahead in led),
            reason=f"the loss left its band ({episode.level:.3f} ± {episode.sigma:.3f}) at step "
            f"{episode.onset_range[1]}, peak {episode.peak:.3f}: {over}",
        )


def _quiet(kind: EventKind, onset_range: tuple[int, int], verdict_step: int, end: int | None, reason: str) -> Event:
    """An event that calls for no rollback, and that nothing led."""
    return Event(
        kind=kind,
        onset_range=onset_range,
        verdict_step=verdict_step,
        end_step=end,
        recommend_rollback=False,
        led_by=(),
        led_by_steps=(),
        reason=reason,
    )
