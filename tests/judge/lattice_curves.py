"""Curves whose losses lie on a coarse lattice, as every edge does: `python -m tests.judge.lattice_curves [SEED ...]`.

All values are sums of few powers of two, and so are the thresholds: a loss is often just at an edge, where "above" and
"not below" part. The record, tests/data/lattice_curves.txt, holds the figures of what the judge says and no sentences:
what kind, which steps, what led, which levels. The command records its curves anew, and those of further seeds.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sentinel.judge.analysis.first_mover import SIGNALS, first_moved_of_readings
from sentinel.judge.events import EventKind
from sentinel.judge.readings import Readings, stretches_of
from sentinel.judge.reference import Reference
from sentinel.judge.replay import Replay
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.judge.verdict import Context, judge
from sentinel.vocabulary.sample import Sample, ScrapedSample
from tests.records import Record

__all__ = ["CLIMBS", "RECORD", "SEEDS", "Climbs", "climbs", "curve", "drawn", "judged", "said", "thresholds_of"]

SEEDS = range(280)
CLIMBS = range(200, 280)
_LEVEL_EVERY = 64  # Samples
_ALIVE = Context(now_unix_s=0.0, job_alive=True, attempt=1, last_sample_unix_s=0.0)
_FIGURE = re.compile(r"(?<![A-Za-z_])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|\b(?:nan|inf)\b")


def thresholds_of(rng: random.Random) -> Thresholds:
    return Thresholds(
        band_sigmas=rng.choice((2.0, 4.0, 6.0)),
        band_floor=rng.choice((0.0, 0.0625, 0.125)),
        patience_steps=rng.choice((16, 24, 64, 96)),
        patience_samples=rng.choice((1, 4, 8)),
        healed_window_samples=rng.choice((4, 8)),
        healed_tolerance=rng.choice((0.0, 0.03125, 0.0625)),
        climb_sigmas=rng.choice((1.0, 2.0, 6.0)),
        climb_tolerance=rng.choice((0.0, 0.03125)),
        skipped_run_steps=rng.choice((2, 4)),
        outright_factor=rng.choice((2.0, 4.0)),
        hopeless_loss=rng.choice((4.0, 8.0)),
        warmup_tolerance=0.125,
        rewarm_tolerance=0.25,
        lengthening_tolerance=0.125,
        curriculum_tolerance=0.25,
        agree_within_steps=rng.choice((0, 8, 16)),
    )


def _noise(rng: random.Random, grain: float) -> float:
    return grain * rng.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2))


def curve(rng: random.Random) -> list[Sample]:
    """Pieces that stand, climb, fall, jump and come back, with readings that change by powers of two."""
    return drawn(rng)[0]


def drawn(rng: random.Random) -> tuple[list[Sample], list[float]]:
    """The curve, and how far above its level each loss was drawn, as a share of it."""
    above: list[float] = []
    level, grain, step = rng.choice((2.0, 4.0, 8.0)), rng.choice((0.0, 0.0, 2.0**-6, 2.0**-4)), rng.choice((0, 992))
    interval, scraped = rng.choice((1, 1, 1, 2, 8)), rng.random() < 0.25
    lr, scale, norm, seqlen, batch, share, kept = 2.0**-10, 2.0**16, 1.0, 64, 256, 1.0, None
    has_norm, has_settings = rng.random() < 0.7, rng.random() < 0.5
    length = rng.choice((5, 9, 160, 320, 320, 640))
    made: list[Sample] = []
    while len(made) < length:
        height, slope = rng.choice((0, 0, 0, 0, 1, 1, 2, 4, 8, 16, 64, -1, -4)), rng.choice((0, 0, 0, 0, 0, 1, -1))
        if not made:
            height, slope = 0, rng.choice((0, 0, 0, 1))
        norm = rng.choice((1.0, 1.0, 1.0, 2.0, 8.0, 32.0))
        scale *= rng.choice((1, 1, 1, 0.5, 2))
        if has_settings:
            lr *= rng.choice((1, 1, 1, 0.5, 1.5, 2))
            seqlen, batch = rng.choice((seqlen, seqlen, seqlen, 32, 64, 96, 128)), rng.choice((batch, batch, 256, 384))
            share, kept = rng.choice((share, share, share, 0.5, 1.0)), rng.choice((kept, kept, kept, None, 32))
        lasts = rng.choice((1, 2, 3, 8, 8, 16, 24, 40, 64)) if made else rng.choice((5, 24, 40, 64, 128))
        for n in range(lasts):
            step += interval
            odd, skipped = rng.random() < 0.01, rng.random() < 0.02
            above.append(height / 16 + slope * n / 64)
            loss = max(0.0, level * (1 + above[-1]) + _noise(rng, level * grain))
            readings = {
                "attempt": 1,
                "global_step": step,
                "time_unix_s": 0.0,
                "skipped": skipped,
                "loss_scale": scale,
                "loss": rng.choice((math.nan, math.inf, 0.0, 2 * loss)) if odd else loss,
                "grad_norm": norm + _noise(rng, grain) if has_norm else None,
                "adam_variance_l1": 64 * norm if has_norm else None,
            }
            if has_settings:
                readings |= {"lr": lr, "seqlen": seqlen, "global_batch_samples": batch, "curriculum_share": share}
                readings |= {"kept_tokens": kept}
            if scraped and interval > 1:
                unseen = {"unseen_steps": interval - 1, "unseen_skipped": rng.choice((0, 0, 0, interval - 1))}
                unseen |= {"unseen_nonfinite": rng.choice((0, 0, 0, 1))} if rng.random() < 0.05 else {}
                unseen |= {"unseen_loss_max": 2 * loss if rng.random() < 0.05 else None}
                made.append(ScrapedSample(**readings, **unseen))  # type: ignore[arg-type]
            else:
                made.append(Sample(**readings))  # type: ignore[arg-type]
    return made, above


def said(name: str) -> str:
    """The figures of all that the judge says of the curve of that seed."""
    rng = random.Random(int(name))
    return "\n".join(_climbs(rng) if int(name) in CLIMBS else _lines(rng))


@dataclass(frozen=True, slots=True, kw_only=True)
class Climbs:
    thresholds: Thresholds
    grain: float
    interval: int
    with_lr: bool
    wobbles: float  # Share of the quarters that lie elsewhere
    heights: list[float]  # Of each block of 32, in 64ths of a nat above 2


def climbs(rng: random.Random) -> Climbs:
    """Blocks of 32 that climb and come back, each in four quarters, with little or no noise."""
    thresholds = replace(
        thresholds_of(rng),
        band_sigmas=rng.choice((math.inf, 6.0)),
        band_floor=0.125,
        climb_sigmas=rng.choice((1.0, 2.0, 4.0)),
        climb_tolerance=rng.choice((0.0, 2.0**-6, 2.0**-5)),
    )
    grain, interval = rng.choice((0.0, 2.0**-9, 2.0**-7)), rng.choice((1, 1, 2))
    with_lr, wobbles = rng.random() < 0.25, rng.choice((0.0, 0.1, 0.5))
    heights: list[float] = []
    while len(heights) < rng.choice((12, 24, 48)):
        heights += [0] * rng.choice((4, 8, 12, 20))
        height, slope = rng.choice((1, 1, 2, 3, 4)), rng.choice((0, 0, 0.25, -0.25))
        heights += [height + slope * n for n in range(rng.choice((2, 3, 4, 6, 12)))]
    return Climbs(
        thresholds=thresholds, grain=grain, interval=interval, with_lr=with_lr, wobbles=wobbles, heights=heights
    )


def judged(seed: int) -> Series:
    """The judge when it has read the curve of that seed."""
    rng = random.Random(seed)
    if seed in CLIMBS:
        *_, (_, series) = _climbing(rng)
        return series
    _, samples, series = _begun(rng)
    for one in samples:
        series.push(one)
    series.end()
    return series


def _climbing(rng: random.Random) -> Iterator[tuple[int, Series]]:
    """Last step of each block that was read, and the judge after it."""
    made, lr = climbs(rng), 2.0**-10
    series = Series(made.thresholds, planned=[640] * (rng.random() < 0.25))
    for block, height in enumerate(made.heights):
        lr *= rng.choice((1, 1, 1, 1, 0.5, 2)) if made.with_lr else 1
        quarters = [height + rng.choice((1, -1, -height)) * (rng.random() < made.wobbles) for _ in range(4)]
        loss = np.repeat([2 + quarter / 64 for quarter in quarters], 8) + [_noise(rng, made.grain) for _ in range(32)]
        steps = made.interval * np.arange(32 * block + 1, 32 * block + 33)
        columns = {"loss": loss} | ({"lr": np.full(32, lr)} if block % 3 == 0 else {})
        series.push_readings(Readings(attempt=1, steps=steps, columns=columns))
        yield int(steps[-1]), series


def _climbs(rng: random.Random) -> Iterator[str]:
    before = "None"
    for step, series in _climbing(rng):
        alarm = series.alarm
        now = f"{alarm and (alarm.onset_range, alarm.verdict_step, _figures(alarm.reason))}"
        if now != before:
            yield f"{step} {now}"
        before = now
    yield from (f"{e.kind.value} {e.onset_range} {e.verdict_step} {e.end_step}" for e in series.events)


def _figures(text: str) -> str:
    return " ".join(_FIGURE.findall(text))


def _begun(rng: random.Random) -> tuple[Thresholds, list[Sample], Series]:
    """A curve, and a judge that has not read it yet."""
    thresholds, samples = thresholds_of(rng), curve(rng)
    steps = [one.global_step for one in samples]
    planned = [rng.choice(steps)] * (rng.random() < 0.25)
    references = [Reference("a sibling", [(at, 2.0) for at in steps[:: rng.choice((1, 16))]])] * (rng.random() < 0.25)
    return thresholds, samples, Series(thresholds, planned=planned, references=references)


def _lines(rng: random.Random) -> Iterator[str]:
    thresholds, samples, series = _begun(rng)
    spans, before = UnhealthySpans(thresholds), None
    for n, one in enumerate(samples):
        series.push(one)
        spans.push(one, well=series.episode is None and series.alarm is None)
        verdict = judge(series, _ALIVE, thresholds)
        if verdict.kind is not before:
            yield f"{one.global_step} {verdict.kind.value} {_figures(verdict.reason)}"
            before = verdict.kind
        if n % _LEVEL_EVERY == _LEVEL_EVERY - 1:
            yield f"{one.global_step} at {series.level} ready {series.band_ready} skipped {series.skipped_run}"
    yield from _past(series, samples, thresholds)
    yield from (f"unhealthy {s.first_step} {s.last_step} {s.worst:.6g} {s.usual}" for s in spans.spans)
    if not any(isinstance(one, ScrapedSample) for one in samples):
        yield from _restarted(samples, rng.randrange(len(samples)), thresholds)


def _past(series: Series, samples: list[Sample], thresholds: Thresholds) -> Iterator[str]:
    lasting = sum(event.end_step is None for event in series.events)
    series.end()
    yield f"{lasting} lasting, then {sum(event.end_step is None for event in series.events)}; healed {series.healed}"
    for event in series.events:
        known = f"{event.onset_range} {event.verdict_step} {event.end_step} {event.recommend_rollback}"
        yield f"{event.kind.value} {known} {_figures(event.reason)}"
        if event.kind in (EventKind.DIVERGENCE, EventKind.SPIKE):
            found = first_moved_of_readings(
                stretches_of(samples, SIGNALS), onset_step=event.onset_range[1], window_steps=16
            )
            moved = [(d.signal, d.first_step, round(d.deviations, 3)) for d in found.departures]
            yield f"moved {moved} stayed {found.stayed} unjudged {found.unjudged}"


def _restarted(samples: list[Sample], back: int, thresholds: Thresholds) -> Iterator[str]:
    """The same in two stretches, and once more from a step on as another attempt, with half the loss."""
    replay = Replay(thresholds)
    half = len(samples) // 2
    for part in (samples[:half], samples[half:]):
        if part:
            replay.push(Readings.of(part))
    again = Readings.of(samples[back:])
    columns = {name: column / 2 if name == "loss" else column for name, column in again.columns.items()}
    replay.push(Readings(attempt=2, steps=again.steps, columns=columns, measured=again.measured, skipped=again.skipped))
    yield f"again from {samples[back].global_step}: {replay.samples} {replay.series.level} {replay.series.band_ready}"
    for event in replay.events:
        yield f"{event.kind.value} {event.onset_range} {event.verdict_step} {event.end_step}"


RECORD = Record("lattice_curves.txt", said)

if __name__ == "__main__":
    RECORD.write()
