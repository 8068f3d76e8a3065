"""A judge that goes on from its kept state says what one says that has read everything: at each later sample."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from sentinel.judge.kept_state import StateError, from_data, to_data
from sentinel.judge.reference import Reference
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpans
from sentinel.vocabulary.sample import Sample
from tests.judge import judged_curves
from tests.judge.lattice_curves import curve, thresholds_of
from tests.tiers import full

Judging = tuple[Series, UnhealthySpans]


def begun(thresholds: Thresholds, planned: Sequence[int], references: Sequence[Reference]) -> Judging:
    return Series(thresholds, planned=planned, references=references), UnhealthySpans(thresholds, planned)


def push(judging: Judging, sample: Sample) -> None:
    series, spans = judging
    series.push(sample)
    spans.push(sample, well=series.alarm is None and series.episode is None)


def kept(judging: Judging, thresholds: Thresholds, references: Sequence[Reference]) -> Judging:
    """The same after it was written to bytes and read again."""
    given = {"thresholds": thresholds, "references": references}
    written = msgspec.msgpack.encode(to_data(judging, given))
    found: Judging = from_data(msgspec.msgpack.decode(written), given)
    return found


def said(judging: Judging) -> str:
    """What is asked of a judge after each sample."""
    series, spans = judging
    return repr(
        [
            *(series.alarm, series.episode, series.level, series.band_ready, series.last, series.last_step),
            *(
                *(series.early_warning, series.logit_warning, series.skipped_run, series.resume_drop, series.healed),
                series.events,
            ),
            *(series.known.patience_steps, series.known.edge, spans.spans),
        ]
    )


def all_of(judging: Judging, thresholds: Thresholds) -> str:
    """All that it holds, to the last digit: what any later verdict depends on."""
    return repr(to_data(judging, {"thresholds": thresholds}))


def check(samples: list[Sample], thresholds: Thresholds, rng: random.Random, **more: Any) -> None:
    planned, references = more.get("planned", ()), more.get("references", ())
    read, goes_on = (begun(thresholds, planned, references) for _ in range(2))
    cuts = {rng.randrange(len(samples) + 1) for _ in range(3)}
    for n, sample in enumerate(samples):
        if n in cuts:
            goes_on = kept(goes_on, thresholds, references)
        push(read, sample)
        push(goes_on, sample)
        if n % 16 == 0 or n in cuts:
            assert said(goes_on) == said(read)
    assert said(goes_on) == said(read)
    assert all_of(goes_on, thresholds) == all_of(read, thresholds)
    read[0].end()
    goes_on[0].end()
    assert said(goes_on) == said(read)


def in_two_attempts(samples: list[Sample], rng: random.Random) -> list[Sample]:
    """The second goes on from a step of the first, with other losses from there on, or is a plain requeue."""
    at = rng.randrange(len(samples))
    factor = rng.choice((1.0, 1.0, 0.5, 0.9, 2.0))
    return samples[:at] + [replace(s, attempt=2, loss=factor * s.loss) for s in samples[at:]]


def check_drawn(seed: int) -> None:
    rng = random.Random(seed)
    thresholds = thresholds_of(rng) if rng.random() < 0.7 else Thresholds()
    samples = in_two_attempts(curve(rng), rng)
    references = [Reference("sibling", [(s, 2.0 + rng.random()) for s in range(0, 2000, 64)])] * (rng.random() < 0.3)
    planned = [rng.randrange(1, 400)] if rng.random() < 0.3 else []
    check(samples, thresholds, rng, planned=planned, references=references)


@pytest.mark.parametrize("block", [range(60), *full([range(at, at + 200) for at in range(60, 1060, 200)])])
def test_from_wherever_a_drawn_curve_is_cut_the_judge_goes_on_as_if_it_had_read_all(block: range) -> None:
    for seed in block:
        check_drawn(seed)


FEW = (
    *("a plateau", "behind its sibling", "data that repeats", "nan", "a loss scale that collapses", "lengths"),
    *("skipped between two scrapes", "a planned change between two lengths", "a warmup", "lone outliers"),
)


@pytest.mark.parametrize("name", [*FEW, *full(name for name in judged_curves.RECORD.read() if name not in FEW)])
def test_the_judge_goes_on_from_any_sample_of_a_known_curve_as_if_it_had_read_all(name: str) -> None:
    planned = [500] * name.startswith("a planned change")
    references = [judged_curves.SIBLING] * ("sibling" in name)
    thresholds = Thresholds(**judged_curves.UNUSUAL.get(name, {}))
    samples = judged_curves.CURVES[name]()
    check(samples[:4000], thresholds, random.Random(name), planned=planned, references=references)


def test_what_objects_share_they_share_again() -> None:
    thresholds = Thresholds()
    judging = begun(thresholds, (), ())
    for sample in judged_curves.CURVES["lengths"]():
        push(judging, sample)
    series, _ = kept(judging, thresholds, ())
    assert series.known.leading in series.known.baseline.detectors
    assert series.known.findings is series._findings
    assert series.known.thresholds is thresholds
    left = next(iter(series._left.values()))
    assert any(one is series.known.leading for one in left.detectors)


def test_a_number_is_the_same_to_the_last_digit() -> None:
    numbers = [math.nan, math.inf, -0.0, 5e-324, 0.1, 2**53, -1, True, None, "é"]
    assert repr(from_data(msgspec.msgpack.decode(msgspec.msgpack.encode(to_data(numbers, {}))), {})) == repr(numbers)


@dataclass
class Foreign:
    x: int = 1


def test_what_no_judge_keeps_is_refused() -> None:
    for foreign in (Foreign(), b"bytes", len, {"a": Foreign}):
        with pytest.raises(StateError):
            to_data(foreign, {})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [[], [99]],
        [[["os.system", []]], [6, 0]],
        [[["builtins.object", []]], [6, 0]],
        [[], [6, 0]],
        [[], [0, 7]],
        [[], [9, "nothing"]],
        [[], [7, "sentinel.judge.events.EventKind", "no such kind"]],
        [[], [7, "sentinel.judge.series.Series", 1]],
        [[], {"a": 1}],
        [[["sentinel.judge.series.Series", ["no", "pairs"]]], [6, 0, 1]],
    ],
)
def test_data_of_no_state_is_refused(data: Any) -> None:
    with pytest.raises(StateError):
        from_data(data, {})
