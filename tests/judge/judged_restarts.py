"""Drawn restarts, and when each has recovered or failed: `python -m tests.judge.judged_restarts [SEED ...]`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from sentinel.judge.recovery_check import Danger, OldTrend, Restart, recovery_of
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample, Validation
from tests.judge.restarts import best_mean
from tests.records import Record

__all__ = ["RECORD", "SEEDS", "said"]

SEEDS = range(100)


def said(name: str) -> str:
    """Where the restart of that seed stands, at each step at which that changes."""
    return "\n".join(_lines(random.Random(int(name))))


def _lines(rng: random.Random) -> Iterator[str]:
    onset, full = rng.choice([40, 250, 900]), rng.choice([128, 128, None])
    before = _samples(rng, range(1, onset), _well if onset < 900 else _power_law, lengths=rng.random() < 0.2)
    best = best_mean(before, full_seqlen=full)
    danger = Danger(
        onset_step=onset,
        onset_tokens=rng.choice([None, onset * 2048]),
        warmup_end_step=rng.choice([onset, onset + 20]),
        best_before=best,
        hold_steps=rng.choice([60, 150]),
        total_steps=rng.choice([None, None, onset + 70]),
    )
    from_step, level = max(1, onset - 20), before[-1].loss
    fall, rate = rng.choice([0.7, 0.94, 0.96, 1.0, 1.02]), rng.choice([5, 60])
    spike_at = onset + rng.choice([10, 90, 999])

    def shape(step: int) -> float:
        if onset == 900 and fall < 1.02:
            return _power_law(step) * (1.0 + 0.1 * (1 - fall))
        left = 0.2 * (fall == 0.94) * (step > onset + 80)  # good once, and then no more
        return level * (fall + (1 - fall) * math.exp(-(step - from_step) / rate) + left) + 2.0 * (step == spike_at)

    since = _samples(rng, range(from_step, from_step + 260), shape, lengths=rng.random() < 0.3)
    validated_before = [_validation(step, rng.choice([2.6, math.nan])) for step in range(10, onset, 10)]
    validated = [_validation(step, rng.choice([2.4, 2.47, 2.5])) for step in range(onset - 10, onset + 200, 10)]
    told_validations, finished_at = rng.random() < 0.5, rng.choice([0, onset + 60, onset + 200])
    yield f"best before {best if best is None else f'{best:.4f}'}; from {from_step}, {fall}, {rate}, {danger}"
    previous, series = None, Series(Thresholds())
    restart, old = Restart(danger, full), OldTrend.of(before, full)
    for n in range(len(since) + 1):
        if n:
            series.push(since[n - 1])
            restart.push(since[n - 1])
        if n % 3:
            continue
        told = recovery_of(
            old,
            restart,
            series,
            finished=bool(finished_at) and n > 0 and since[n - 1].global_step >= finished_at,
            validated_before=validated_before if told_validations else (),
            validated=[v for v in validated if told_validations and v.global_step < from_step + n],
        )
        if n % 60 == 0 or told.answer is not previous:
            yield f"{n}: {told.answer}: {told.reason}"
        previous = told.answer


def _well(step: int) -> float:
    return 2.4 + 2.4 * math.exp(-step / 60)


def _power_law(step: int) -> float:
    return 10.0 * float(step) ** -0.1


def _samples(rng: random.Random, steps: range, shape: Callable[[int], float], *, lengths: bool) -> list[Sample]:
    noise, at_length = rng.choice([0.002, 0.01]), rng.choice([0, 30])
    counts = rng.random() < 0.8
    return [
        Sample(
            attempt=2,
            global_step=step,
            time_unix_s=0.0,
            loss=math.nan if rng.random() < 0.003 else shape(step) * (1 + rng.gauss(0, noise)),
            seqlen=64 if lengths and step - steps.start < at_length else 128,
            kept_tokens=64 if lengths and 60 < step - steps.start < 70 else None,
            curriculum_share=0.5 if lengths and 75 < step - steps.start < 80 else None,
            skipped=rng.random() < 0.003,
            consumed_tokens=step * 2000 if counts else None,
        )
        for step in steps
    ]


def _validation(step: int, loss: float) -> Validation:
    return Validation(attempt=2, global_step=step, time_unix_s=0.0, loss=loss)


RECORD = Record("judged_restarts.txt", said)

if __name__ == "__main__":
    RECORD.write()
