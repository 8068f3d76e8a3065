"""The judge on a curve, sample by sample as it would have seen the run: live, and told of the log's end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.judge.events import Event, EventKind
from sentinel.judge.readings import Readings
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

from .curves import Curve
from .scoring import Said, Told

__all__ = ["AT_END", "NAME", "UNTOLD", "Judged", "judged", "parts_of", "said_live", "warm_up"]

NAME, AT_END, UNTOLD = "sentinel", "sentinel, end told", "sentinel, no plans"
"""Live, as a watch judges; where the log's end is told too, as `sentinel replay` does; live without planned changes."""

CHUNK = 512
"""Samples between two looks at the events: a verdict that is taken back later stays said."""

COLUMNS = (
    *("grad_norm", "lr", "loss_scale", "adam_variance_l1", "adam_variance_max", "update_norm"),
    *("attention_logit_max", "output_logit_max", "loss_spread", "epoch", "seqlen", "global_batch_samples"),
)
COUNTS = frozenset({"seqlen", "global_batch_samples"})
QUIET_KINDS = frozenset({EventKind.REGIME_CHANGE, EventKind.STALLED, EventKind.PLATEAU})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the judge said: scored, and as it said it."""

    said: Said
    """Live: it is never told that the log ends."""

    at_end: Said
    """With the end told: an episode that is open then has not come back."""

    untold: Said
    """Live, and without the planned changes."""

    events: tuple[Event, ...]
    """The live ones."""


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
    parts = parts_of(curve)
    live, ended, seconds = _replayed(parts, thresholds, curve.planned)
    untold = _replayed(parts, thresholds, ())[0] if curve.planned else live
    said = {
        name: _said(name, curve, parts, events, seconds)
        for name, events in ((NAME, live), (AT_END, ended), (UNTOLD, untold))
    }
    return Judged(said=said[NAME], at_end=said[AT_END], untold=said[UNTOLD], events=live)


def said_live(curve: Curve, parts: Sequence[Readings], thresholds: Thresholds) -> Said:
    """`judged(…).said` alone, of readings that were made ready before."""
    live, _, seconds = _replayed(parts, thresholds, curve.planned)
    return _said(NAME, curve, parts, live, seconds)


def _said(name: str, curve: Curve, parts: Sequence[Readings], events: tuple[Event, ...], seconds: float) -> Said:
    verdicts = tuple(Told(step=e.verdict_step, onset=e.onset_step) for e in events if e.recommend_rollback)
    last = curve.steps[-1]
    spikes = [(e.onset_step, last if e.end_step is None else e.end_step) for e in events if _is_loud(e)]
    samples = sum(map(len, parts))
    return Said(detector=name, verdicts=verdicts, spikes=tuple(spikes), samples=samples, seconds=seconds)


def _is_loud(event: Event) -> bool:
    return event.kind not in QUIET_KINDS


def warm_up(thresholds: Thresholds) -> None:
    """Has everything imported that is, so that no curve pays for it."""
    rows = [Sample(attempt=1, global_step=i, time_unix_s=math.nan, loss=2.0, grad_norm=1.0) for i in range(1, 200)]
    _replayed([Readings.of(rows)], thresholds, ())


def parts_of(curve: Curve) -> list[Readings]:
    """The samples as a watch gets them: up to CHUNK of one attempt at a time."""
    samples, parts, at = samples_of(curve), list[Readings](), 0
    while at < len(samples):
        attempt = samples[at].attempt
        part = [s for s in samples[at : at + CHUNK] if s.attempt == attempt]
        at += len(part)
        parts.append(Readings.of(part))
    return parts


def _replayed(
    parts: Sequence[Readings], thresholds: Thresholds, planned: tuple[int, ...]
) -> tuple[tuple[Event, ...], tuple[Event, ...], float]:
    """Every recommendation that was ever made, beside what is left: live, and with the log's end told. The time is the
    judge's."""
    replay = Replay(thresholds, planned)
    recommended: dict[tuple[int, int], Event] = {}
    seconds = 0.0
    for readings in parts:
        began = time.perf_counter()
        replay.push(readings)
        seconds += time.perf_counter() - began
        recommended |= {(e.verdict_step, e.onset_step): e for e in replay.events if e.recommend_rollback}
    live = _with_withdrawn(replay.events, recommended)
    replay.end()
    return live, _with_withdrawn(replay.events, recommended), seconds


def _with_withdrawn(events: tuple[Event, ...], recommended: dict[tuple[int, int], Event]) -> tuple[Event, ...]:
    standing = {(e.verdict_step, e.onset_step) for e in events if e.recommend_rollback}
    withdrawn = [e for key, e in recommended.items() if key not in standing]
    return tuple(sorted((*events, *withdrawn), key=lambda e: e.verdict_step))
