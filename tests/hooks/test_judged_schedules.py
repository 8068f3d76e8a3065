"""Schedules switched on in the middle of real training, judged live: no false verdict, and no illness that hides.

tests/judge/test_scheduled_runs.py does the same with all of them, at a larger size, from what was recorded.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import VerdictKind, judge_past
from sentinel.vocabulary.sample import Sample
from tests.hooks.scheduled import Runs, Size, diverge_all, index_of, restart_all

pytestmark = pytest.mark.full

ILL = ("all of it", "batch", "voc")
LIVE = ("linear keep", "mixed", "adaptive", "batch", "all of it")
THRESHOLDS = Thresholds(patience_steps=20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    root = tmp_path_factory.mktemp("scheduled")
    index = index_of(root / "index", 32)
    size = Size(full=32, batch=4, at=60, warmup=48, steps=150, index=index, unbearable_lr=6e-2)
    found = Runs(root)
    restart_all(found, size, {name: size.standings()[name] for name in LIVE})
    diverge_all(found, replace(size, steps=80), ILL)
    ended = found.run()
    assert set(ended.values()) == {"finished"}, ended
    return found


def lineage(runs: Runs, case: str) -> list[Sample]:
    history = runs.history(case)
    assert history.latest is not None
    return list(history.lineage(history.latest))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("case", LIVE)
def test_a_restart_with_a_schedule_is_never_called_a_divergence(runs: Runs, case: str) -> None:
    series = Series(THRESHOLDS)
    for sample in lineage(runs, f"well {case}"):
        series.push(sample)
        assert judge_past(series, None).kind is not VerdictKind.DIVERGED
    assert series.last_step == 150
    assert not any(event.recommend_rollback for event in series.events)


@pytest.mark.parametrize("case", LIVE)
def test_a_nan_is_found_in_the_middle_of_it(runs: Runs, case: str) -> None:
    samples = lineage(runs, f"nan {case}")
    assert any(math.isnan(s.adam_variance_l1 or 0.0) for s in samples)
    assert judge_past(Series(THRESHOLDS, samples), None).kind is VerdictKind.DIVERGED


@pytest.mark.parametrize("case", ILL)
def test_a_rate_that_is_too_high_is_found_in_the_middle_of_it(runs: Runs, case: str) -> None:
    assert judge_past(Series(THRESHOLDS, lineage(runs, f"ill {case}")), None).kind is VerdictKind.DIVERGED
