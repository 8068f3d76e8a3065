"""The judge on a curve, sample by sample as it would have seen the run."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from sentinel.judge.events import Event, EventKind
from sentinel.judge.readings import Readings
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

from .curves import Curve
from .scoring import Said, Told

__all__ = ["NAME", "Judged", "judged", "warm_up"]

NAME = "sentinel"

CHUNK = 512
"""Samples between two looks at the events: a verdict that is taken back later stays said."""

COLUMNS = (
    *("grad_norm", "lr", "loss_scale", "adam_variance_l1", "adam_variance_max", "update_norm"),
    *("loss_spread", "epoch", "seqlen", "global_batch_samples"),
)
COUNTS = frozenset({"seqlen", "global_batch_samples"})
QUIET_KINDS = frozenset({EventKind.REGIME_CHANGE, EventKind.STALLED, EventKind.PLATEAU})


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
    events, seconds = _replayed(samples, thresholds, curve.planned)
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
    """Has everything imported that is, so that no curve pays for it."""
    rows = [Sample(attempt=1, global_step=i, time_unix_s=math.nan, loss=2.0, grad_norm=1.0) for i in range(1, 200)]
    _replayed(rows, thresholds, ())


def _replayed(
    samples: list[Sample], thresholds: Thresholds, planned: tuple[int, ...]
) -> tuple[tuple[Event, ...], float]:
    """Every recommendation that was ever made, beside what is left in the end. The time is the judge's.

    The log's end is told to the judge, as it is when a file is replayed: what has not come back by then, did not.
    """
    replay = Replay(thresholds, planned)
    recommended: dict[tuple[int, int], Event] = {}
    seconds, at = 0.0, 0
    while at < len(samples):
        attempt = samples[at].attempt
        part = [s for s in samples[at : at + CHUNK] if s.attempt == attempt]
        at += len(part)
        readings = Readings.of(part)
        began = time.perf_counter()
        replay.push(readings)
        if at >= len(samples):
            replay.end()
        seconds += time.perf_counter() - began
        for event in replay.events:
            if event.recommend_rollback:
                recommended[event.verdict_step, event.onset_step] = event
    standing = {(e.verdict_step, e.onset_step) for e in replay.events if e.recommend_rollback}
    withdrawn = [e for key, e in recommended.items() if key not in standing]
    return tuple(sorted((*replay.events, *withdrawn), key=lambda e: e.verdict_step)), seconds
