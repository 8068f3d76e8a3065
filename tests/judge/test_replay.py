"""Live and replayed, one at a time and in stretches, straight through and after a restart: the same verdicts."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.judge import replay as replay_module
from sentinel.judge.events import EventKind
from sentinel.judge.readings import Readings
from sentinel.judge.replay import Replay
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample
from tests.support.there import there


def state(value: object) -> object:
    """Everything that an object of the judge holds, as something that compares; nan equals nan."""
    if isinstance(value, Thresholds | Sample):
        return None  # the thresholds are the same, and the last sample is kept only of those that came by themselves
    if isinstance(value, str | bytes):
        return value
    if hasattr(value, "__dict__"):
        return {name: state(held) for name, held in vars(value).items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: state(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: state(held) for name, held in value.items()}
    if not hasattr(value, "__iter__"):
        return "nan" if isinstance(value, float) and math.isnan(value) else value
    return [state(held) for held in value]


def without_last(series: Series) -> object:
    held = state(series)
    assert isinstance(held, dict)
    held.pop("last")
    return held


@st.composite
def runs(draw: st.DrawFn) -> list[Sample]:
    """A run with a shape, noise, tails, jumps that stay or heal, nan, skipped steps, gaps, and changes of regime."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, interval = draw(st.integers(1, 400)), draw(st.sampled_from([1, 1, 5, 10]))
    noise = draw(st.sampled_from([0.0, 0.001, 0.01, 0.3]))
    steps = draw(st.sampled_from([0, 10, 5000])) + interval * np.arange(1, n + 1)
    loss = (2 + 6 * (steps + 20.0) ** -0.4) * (1 + noise * rng.standard_t(3, n))
    for _ in range(draw(st.integers(0, 3))):
        at, lasts = rng.integers(0, n), rng.choice([1, 8, 60, n])
        loss[at : at + lasts] *= 1 + rng.choice([-1.0, -0.5, 0.03, 0.3, 4.0])
    loss[rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.02]))] = math.nan
    grad_norm = np.exp(0.2 * rng.standard_normal(n)) * (1 + 50 * (rng.random(n) < 0.01))
    has_grad_norm, has_scale = draw(st.booleans()), draw(st.booleans())
    l1_from = draw(st.sampled_from([0, 0, 30, 200]))  # a trainer that measures more from some step on
    gaps = rng.random(n) < draw(st.sampled_from([0.0, 0.1]))
    skipped = rng.random(n) < draw(st.sampled_from([0.0, 0.0, 0.05]))
    changes = np.cumsum(rng.random(n) < draw(st.sampled_from([0.0, 0.01])))
    lr = np.minimum(1, np.arange(1, n + 1) / 50) * 1e-3 * np.where(changes % 3 == 2, 3.0, 1.0)
    return [
        Sample(
            attempt=1,
            global_step=int(steps[i]),
            time_unix_s=math.nan,
            loss=float(loss[i]),
            grad_norm=float(grad_norm[i]) if has_grad_norm and not gaps[i] else None,
            adam_variance_l1=float(grad_norm[i] / 2) if has_grad_norm and i >= l1_from else None,
            loss_scale=float(65536 / 2 ** (changes[i] % 5)) if has_scale else None,
            lr=float(lr[i]),
            seqlen=int(64 * 2 ** (changes[i] % 3)),
            skipped=bool(skipped[i]),
        )
        for i in range(n)
    ]


@settings(max_examples=150, deadline=None)
@given(runs(), st.lists(st.integers(0, 400), max_size=5))
def test_a_stretch_at_once_is_judged_as_sample_for_sample(run: list[Sample], cuts: list[int]) -> None:
    planned = [run[c % len(run)].global_step + 1 for c in cuts[::2]]  # also between two samples
    live = Series(Thresholds(), run, planned=planned)
    replayed = Series(Thresholds(), planned=planned)
    edges = sorted({0, len(run), *(c for c in cuts if c < len(run))})
    for a, b in pairwise(edges):
        replayed.push_readings(Readings.of(run[a:b]))
    assert without_last(replayed) == without_last(live)
    assert replayed.events == live.events


@settings(max_examples=60, deadline=None)
@given(runs(), st.data())
def test_after_a_restart_only_the_line_of_descent_counts(run: list[Sample], data: st.DataObject) -> None:
    back = data.draw(st.integers(0, len(run) - 1))
    again = [replace(s, attempt=2, loss=s.loss * 1.01) for s in run[back:]]
    replay = Replay(Thresholds())
    for part in (run[: len(run) // 3], run[len(run) // 3 :], again):
        if part:
            replay.push(Readings.of(part))
    descent = Series(Thresholds(), [*run[:back], *again])
    assert without_last(replay.series) == without_last(descent)
    gone = [e for e in replay.events if e not in descent.events]
    assert all(e.onset_range[1] >= run[back].global_step and e.end_step is not None for e in gone)


def test_what_a_rollback_undid_stays_an_event_that_is_over() -> None:
    steps = np.arange(1, 601)
    rng = np.random.default_rng(0)
    loss = 2.0 * (1 + 0.003 * rng.standard_normal(600))
    sick = np.where(steps >= 400, 2 * loss, loss)
    replay = Replay(Thresholds())
    replay.push(Readings(attempt=1, steps=steps, columns={"loss": sick}))
    replay.push(Readings(attempt=2, steps=steps[300:] + 0, columns={"loss": loss[300:]}))
    divergence, back = [e for e in replay.events if e.kind in (EventKind.DIVERGENCE, EventKind.REGIME_CHANGE)][::-1]
    assert (divergence.onset_step, divergence.end_step, divergence.recommend_rollback) == (400, 600, True)
    assert (back.onset_step, back.recommend_rollback) == (301, False)
    assert replay.series.alarm is None


@pytest.mark.parametrize("first", [1, 2001])
def test_a_run_that_is_already_sick_when_it_is_first_seen_is_known_when_it_was_better(first: int) -> None:
    """Began in the middle: with the history of its attempt, or only the last third of it."""
    steps = np.arange(1, 3001)
    loss = (2 + 3 * np.exp(-steps / 300)) * (1 + 0.01 * np.random.default_rng(1).standard_normal(3000))
    loss[2400:] *= 1.3
    replay = Replay(Thresholds())
    replay.push(Readings(attempt=1, steps=steps[first - 1 :], columns={"loss": loss[first - 1 :]}))
    divergence = next(e for e in replay.events if e.recommend_rollback)
    assert abs(divergence.onset_step - 2401) <= 5
    assert divergence.verdict_step - 2401 <= 100


@pytest.mark.parametrize("kept", [1 << 18, 256])
def test_what_moved_first_is_known_of_a_divergence_that_was_rolled_back_and_of_one_long_past(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient leaves its noise at step 1465, the loss at 1490; then the run goes back, or on for 2,000 steps."""
    monkeypatch.setattr(replay_module, "_KEPT_SAMPLES", kept)
    rng = random.Random(1)

    def made(attempt: int, steps: range, ill: range) -> Readings:
        made = [
            Sample(
                attempt=attempt, global_step=s, time_unix_s=0.0, loss=3 + rng.gauss(0, 0.01) + (s in ill),
                grad_norm=1 + rng.gauss(0, 0.05) + 2 * (s in range(ill.start - 25, ill.stop)),
            )
            for s in steps
        ]  # fmt: skip
        return Readings.of(made)

    ill, replay = range(1490, 1800), Replay(Thresholds())
    for first in range(1, 4000, 64):
        replay.push(made(1, range(first, first + 64), ill))
    (long_past,) = [(e, moved) for e, moved in replay.found if e.kind is EventKind.DIVERGENCE]
    replay = Replay(Thresholds())
    replay.push(made(1, range(1, 1700), ill))
    replay.push(made(2, range(1400, 1900), range(0)))
    (rolled_back,) = [(e, moved) for e, moved in replay.found if e.kind is EventKind.DIVERGENCE]
    for event, moved in (long_past, rolled_back):
        assert event.onset_range[1] == 1490
        assert [(d.signal, d.steps_before_onset) for d in there(moved).leading] == [("grad_norm", 25)]
