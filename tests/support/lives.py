"""Lives of a run as journals hold them: attempts, restarts, what each resumed from."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import strategies as st

from sentinel.vocabulary.sample import CheckpointSaved, LayerVariance, Record, RunStarted, Sample, Validation

LAST = 16
"""Samples that are kept at hand here: few, so that short runs need the source again."""


def life(
    number: int,
    first: int,
    steps: int,
    *,
    parent: int | None = None,
    seed: int = 0,
    ill_from: int | None = None,
    slow_saves: int = 0,
) -> list[Record]:
    """One attempt's records: a noisy falling loss, some skipped or short or nan; saves and validations between.

    A save is told up to `slow_saves` steps after it was begun.
    """
    rng = random.Random(seed)
    resumed = None if parent is None else first - 1
    saves: dict[int, CheckpointSaved] = {}
    records: list[Record] = [RunStarted(attempt=number, time_unix_s=0.0, parent_attempt=parent, resumed_from=resumed)]
    for step in range(first, first + steps):
        at: dict[str, Any] = {"attempt": number, "global_step": step, "time_unix_s": float(step)}
        loss = 2.0 + 3.0 * math.exp(-step / 60) * (1 + rng.gauss(0, 0.01)) + (3.0 if step == ill_from else 0.0)
        if ill_from is not None and step > ill_from:
            loss = rng.choice((loss + 2, math.nan))
        if rng.random() > 0.02:  # a hook may lose a sample
            records.append(
                Sample(
                    **at,
                    loss=loss,
                    grad_norm=rng.lognormvariate(0, 0.2),
                    seqlen=64 if rng.random() < 0.1 else 128,
                    skipped=rng.random() < 0.02,
                    consumed_samples=step * 16,
                    consumed_tokens=step * 16 * 128,
                )
            )
        if step % 10 == 0:
            records.append(LayerVariance(**at, layers=("a",), adam_variance_l1=(1.0,), adam_variance_max=(1.0,)))
            records.append(Validation(**at, loss=loss))
            if rng.random() < 0.8:
                saves[step + rng.randint(0, slow_saves)] = CheckpointSaved(**at, tag=f"global_step{step}")
        if step in saves:
            records.append(saves.pop(step))
    return records


@st.composite
def stories(draw: st.DrawFn) -> list[list[Record]]:
    """Up to four attempts, each from scratch or from a step of one before it, told in pieces of any size."""
    told: list[Record] = []
    ends: list[int] = []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        steps, seed = draw(st.integers(0, 120)), draw(st.integers(0, 99))
        parent = draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        first = 1
        if parent is not None:
            first = draw(st.integers(0, ends[parent - 1])) + 1
        ill = draw(st.none() | st.integers(first, first + max(steps, 1)))
        one = life(number, first, steps, parent=parent, seed=seed, ill_from=ill, slow_saves=3 * LAST)
        started = one.pop(0)
        if draw(st.booleans()) or parent is not None:  # some never say how they began, some say it late
            one.insert(draw(st.sampled_from((0, 0, 5, 50))), started)
        told += one
        ends.append(first - 1 + steps)
    cuts = sorted(draw(st.lists(st.integers(0, len(told)), max_size=8)))
    return [told[a:b] for a, b in zip([0, *cuts], [*cuts, len(told)], strict=True)]
