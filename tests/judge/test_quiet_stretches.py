"""Where nothing happens, samples are taken eight at a time: what a replay of millions of steps lives on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sentinel.judge.events import EventKind
from sentinel.judge.readings import BANDED, Readings
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from tests.support.there import there

STEPS = np.arange(1, 2401)


def calls(work: Callable[[], object]) -> int:
    """How many functions of Python the work calls: a measure of time that a busy machine does not change."""
    counted = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def columns(names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    noise = np.random.default_rng(0).standard_normal((len(names), len(STEPS)))
    return {name: 2.0 * (1 + 0.001 * row) for name, row in zip(names, noise, strict=True)}


def settings(names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.full(len(STEPS), 64.0) for name in names}


@pytest.mark.parametrize(
    "extra",
    [
        {},
        columns(BANDED),
        settings(("loss_scale", "lr", "seqlen", "kept_tokens", "curriculum_share", "global_batch_samples", "epoch")),
    ],
    ids=["loss", "signals", "settings"],
)
def test_a_quiet_sample_costs_few_calls(extra: dict[str, np.ndarray[Any, Any]]) -> None:
    everything = columns(("loss",)) | extra
    series = Series(Thresholds(), planned=[10**9])

    def push(part: slice) -> None:
        made = {name: column[part] for name, column in everything.items()}
        series.push_readings(Readings(attempt=1, steps=STEPS[part], columns=made))

    settled, quiet = slice(0, 800), slice(800, 2400)
    push(settled)
    assert calls(lambda: push(quiet)) < 15 * 1600
    assert series.events == ()
    assert series.level == pytest.approx(2.0, rel=1e-3)


def test_a_sibling_that_has_ended_says_nothing_of_later_steps() -> None:
    sibling = Reference("the 13B", [(step, 2.0) for step in range(100, 1501, 50)])
    steps = np.arange(1, 6001)
    series = Series(Thresholds(), references=[sibling])
    series.push_readings(Readings(attempt=1, steps=steps, columns={"loss": 8.0 * (steps + 100.0) ** -0.1}))
    (event,) = series.events
    assert event.kind is EventKind.PLATEAU
    assert event.onset_range[0] < 1500
    assert there(event.end_step) > 1500
