"""The judge on a curve, sample by sample as it would have seen the run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from sentinel.judge.events import Event, EventKind
from sentinel.judge.readings import Readings
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

from .curves import Curve
from .scoring import Said, Told

__all__ = ["NAME", "Judged", "judged", "warm_up"]

NAME = "sentinel"

CHUNK = 32
"""Samples between two looks at the events: a verdict that is taken back later stays said."""

COLUMNS = (
    *("grad_norm", "lr", "loss_scale", "adam_variance_l1", "adam_variance_max", "update_norm"),
    *("loss_spread", "epoch", "seqlen", "global_batch_samples"),
)
COUNTS = frozenset({"seqlen", "global_batch_samples"})
QUIET_KINDS = frozenset({EventKind.REGIME_CHANGE, EventKind.STALLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the judge said: scored, and as it said it."""

    said: Said
    events: tuple[Event, ...]


def samples_of(curve: Curve) -> list[Sample]:
    """The rows as the trainer would have reported them. A row without a loss is left out, unless it was skipped."""
    samples = []
    attempts = curve.attempts()
    nothing = (None,) * len(curve.steps)
    for i, (step, loss) in enumerate(zip(curve.steps, curve.losses, strict=True)):
        skipped = bool(curve.columns.get("skipped", nothing)[i])
        if loss is None and not skipped:
            continue
        more: dict[str, Any] = {name: curve.columns.get(name, nothing)[i] for name in COLUMNS}
        more |= {name: _whole(more[name]) for name in COUNTS}
        samples.append(
            Sample(
                attempt=attempts[i],
                global_step=step,
                time_unix_s=math.nan,
                loss=math.nan if loss is None else loss,
                skipped=skipped,
                consumed_tokens=_whole(curve.columns.get("tokens", nothing)[i]),
                **more,
            )
        )
    return samples


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) else None


def judged(curve: Curve, thresholds: Thresholds) -> Judged:
    """The judge's findings on the curve, and what they cost."""
    samples = samples_of(curve)
    events, seconds = (
        _by_columns(samples, thresholds) if hasattr(Series, "push_readings") else _one_by_one(samples, thresholds)
    )
    said = Said(
        detector=NAME,
        verdicts=tuple(Told(step=e.verdict_step, onset=e.onset_step) for e in events if e.recommend_rollback),
        spikes=tuple(
            (e.onset_step, e.end_step if e.end_step is not None else curve.steps[-1])
            for e in events
            if e.kind not in QUIET_KINDS
        ),
        samples=len(samples),
        seconds=seconds,
    )
    return Judged(said=said, events=events)


def warm_up(thresholds: Thresholds) -> None:
    """Has everything compiled and imported that is, so that no curve pays for it."""
    for norm in (None, 1.0):
        rows = [Sample(attempt=1, global_step=i, time_unix_s=math.nan, loss=2.0, grad_norm=norm) for i in range(1, 200)]
        if hasattr(Series, "push_readings"):
            _by_columns(rows, thresholds)


def _by_columns(samples: list[Sample], thresholds: Thresholds) -> tuple[tuple[Event, ...], float]:
    """With events: every recommendation that was ever made, beside what is left in the end. The time is the judge's."""
    series = Series(thresholds)
    recommended: dict[tuple[int, int], Event] = {}
    seconds, at = 0.0, 0
    while at < len(samples):
        attempt = samples[at].attempt
        part = [s for s in samples[at : at + CHUNK] if s.attempt == attempt]
        at += len(part)
        readings = Readings.of(part)
        began = time.perf_counter()
        series.push_readings(readings)  # type: ignore[attr-defined]
        seconds += time.perf_counter() - began
        for event in series.events:  # type: ignore[attr-defined]
            if event.recommend_rollback:
                recommended[event.verdict_step, event.onset_step] = event
    final: tuple[Event, ...] = series.events  # type: ignore[attr-defined]
    standing = {(e.verdict_step, e.onset_step) for e in final if e.recommend_rollback}
    withdrawn = [e for key, e in recommended.items() if key not in standing]
    return tuple(sorted((*final, *withdrawn), key=lambda e: e.verdict_step)), seconds


def _one_by_one(samples: list[Sample], thresholds: Thresholds) -> tuple[tuple[Event, ...], float]:
    """Without: a divergence wherever the alarm goes up, a spike for every episode that healed."""
    series = Series(thresholds)
    events: list[Event] = []
    healed, alarm = 0, None
    seconds = 0.0
    for sample in samples:
        began = time.perf_counter()
        series.push(sample)
        seconds += time.perf_counter() - began
        for onset, at in series.healed[healed:]:
            events.append(_event(EventKind.SPIKE, (onset, onset), at, at, "it came back by itself"))
        healed = len(series.healed)
        if series.alarm is not None and alarm is None:
            kind = EventKind.NAN if "nan" in series.alarm.reason else EventKind.DIVERGENCE
            events.append(_event(kind, series.alarm.onset_range, series.alarm.step, None, series.alarm.reason))
        elif series.alarm is None and alarm is not None:
            last = next(e for e in reversed(events) if e.recommend_rollback)
            events[events.index(last)] = _event(
                last.kind, last.onset_range, last.verdict_step, sample.global_step, last.reason
            )
        alarm = series.alarm
    if series.episode is not None and alarm is None and samples:
        events.append(
            _event(EventKind.SPIKE, series.episode.onset_range, samples[-1].global_step, None, "it is not over yet")
        )
    return tuple(events), seconds


def _event(kind: EventKind, onset: tuple[int, int], verdict: int, end: int | None, reason: str) -> Event:
    return Event(
        kind=kind,
        onset_range=onset,
        verdict_step=verdict,
        end_step=end,
        recommend_rollback=kind is not EventKind.SPIKE,
        led_by=(),
        led_by_steps=(),
        reason=reason,
    )
