"""Which instability an onset shows: the readings of five small trainings (docs/STABILITY.md), drawn after their own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.analysis.instability import InstabilitySeen, instability_before
from sentinel.judge.readings import Readings
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.sample import Sample
from tests.support.there import there

ONSET = (402, 404)


def lineage(
    norm: dict[int, float] | None = None, root: dict[int, float] | None = None, logit: dict[int, float] | None = None
) -> list[Sample]:
    """Gradients of norm 0.5 and a variance of 1; from the steps that are named on, the value that stands there."""

    def at(step: int, changed: dict[int, float] | None, value: float) -> float:
        return next((v for first, v in sorted((changed or {}).items(), reverse=True) if step >= first), value)

    return [
        Sample(
            attempt=1,
            global_step=step,
            time_unix_s=float(step),
            loss=2.0,
            grad_norm=at(step, norm, 0.5),
            adam_variance_l1=at(step, root, 1.0),
            attention_logit_max=at(step, logit, 20.0) if step % 10 == 0 else None,
        )
        for step in range(200, 500)
    ]


def shown(samples: list[Sample], clip: float | None = 1.0) -> InstabilitySeen | None:
    return instability_before([Readings.of(samples)], ONSET, clip)


def test_gradients_that_grow_at_once_leave_the_variance_behind() -> None:
    found = there(shown(lineage(norm={401: 32.0}, root={401: 2.0, 402: 3.0, 404: 4.0}), clip=0.0))
    assert (found.kind, found.first_step, found.value) == ("lagging_variance", 401, pytest.approx(2 * 32 / 3))
    assert "Adam's variance lags" in found.sentence


@pytest.mark.parametrize(
    ("samples", "clip"),
    [
        pytest.param(lineage(), 1.0, id="nothing moved"),
        pytest.param(lineage(norm={401: 32.0}), 1.0, id="the clip hides it from the update"),
        pytest.param(lineage(norm={401: 32.0}), None, id="whether it is clipped is not known"),
        pytest.param(lineage(norm={401: 32.0, 402: 0.5}), 0.0, id="one batch with a large gradient"),
        pytest.param(lineage(norm={405: 32.0}), 0.0, id="the gradients followed the loss"),
        pytest.param(lineage(norm={300: 32.0}), 0.0, id="it was so long before"),
        pytest.param(lineage(norm={401: 1.9}), 0.0, id="less than four times"),
        pytest.param([replace(s, grad_norm=None) for s in lineage(norm={401: 9.0})], 0.0, id="not measured"),
        pytest.param(lineage(norm={401: 9.0})[190:], 0.0, id="too little before it"),
        pytest.param(lineage(logit={0: 99.0}), 1.0, id="logits below the limit"),
        pytest.param(lineage(logit={405: 900.0}), 1.0, id="logits that followed the loss"),
        pytest.param(lineage(logit={0: 150.0, 360: 220.0}), 1.0, id="large logits that stand"),
        pytest.param(lineage(logit={300: 900.0, 310: 20.0}), 1.0, id="a large logit that healed"),
        pytest.param(lineage(logit={400: math.inf}), 1.0, id="a logit that is no number at the onset"),
        pytest.param(lineage(norm={404: 9.0}), 0.0, id="gradients and loss in the same step"),
        pytest.param(lineage(norm={401: 9.0, 402: math.nan}), 0.0, id="one large gradient, and nan"),
        pytest.param(lineage(norm={401: 9.0})[:203], 0.0, id="two readings of it, and no more"),
        pytest.param(lineage(root={401: 0.05}), 0.0, id="the variance was lost, and no gradient grew"),
        pytest.param(lineage(norm={0: 9.0, 300: 0.5, 401: 9.0}), 0.0, id="as large as before a hundred steps"),
    ],
)
def test_no_instability_is_shown(samples: list[Sample], clip: float | None) -> None:
    assert shown(samples, clip) is None


def test_attention_logits_have_passed_their_limit_before_the_onset() -> None:
    found = shown(lineage(logit={330: 120.0, 380: 7000.0, 410: 9e9}))
    assert found == InstabilitySeen(kind="attention_logits", first_step=330, value=7000.0)


def test_it_is_kept_with_what_moved_first() -> None:
    moved = FirstMoved(departures=(), stayed=("loss",), unjudged=(), instability=shown(lineage(logit={350: 7000.0})))
    assert FirstMoved.from_json(load_object(dump_json(moved.to_json()))) == moved
    assert moved.sentence.endswith("attention logits above 100 since step 350, 7e+03 before the onset")
    assert "instability" not in replace(moved, instability=None).to_json()
