"""Schedules: what each gives at a step, between which bounds, how anchors move them, and how they are read again."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.pacing import (
    Adaptive,
    AdaptiveState,
    BatchSizeSchedule,
    CurriculumSchedule,
    Custom,
    DifficultySchedule,
    FixedDiscrete,
    FixedLinear,
    FixedRoot,
    LrSchedule,
    MetricSchedule,
    Mixed,
    Position,
    RandomLtdSchedule,
    SeqlenSchedule,
    SlwRun,
    Track,
    refuse_beside_slw,
    shortening,
    slw_changes,
    staircase,
    start_for_size,
    warmup_tokens,
)
from sentinel.vocabulary.pacing.presets import (
    bert_rarity,
    bert_rarity_by_value,
    bert_seqlen,
    gpt_random_ltd,
    gpt_rarity,
    gpt_seqlen,
    lr,
)

STEP = st.integers(0, 3000)


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, int]:
    """Lengths, an anchor and a multiple, of which neither length need be one."""
    start = draw(st.integers(1, 600))
    return {
        "start": start,
        "full": draw(st.integers(start, start + 2000)),
        "anchor_step": draw(st.integers(0, 1000)),
        "multiple": draw(st.sampled_from((1, 8, 16))),
    }


@st.composite
def discrete(draw: st.DrawFn) -> FixedDiscrete:
    told = draw(bounds())
    count = draw(st.integers(0, 5))
    lasts = draw(st.lists(st.integers(0, 1500), min_size=count, max_size=count, unique=True))
    lengths = st.integers(told["start"], told["full"])
    stages = draw(st.lists(lengths, min_size=count + 1, max_size=count + 1))
    return FixedDiscrete(**told, difficulties=tuple(sorted(stages)), max_steps=tuple(sorted(lasts)))


DEGREE = st.floats(0.25, 8)
TOTAL = st.integers(0, 1500)
RISING = st.one_of(
    st.builds(lambda b, t: FixedLinear(**b, total_steps=t), bounds(), TOTAL),
    st.builds(lambda b, t, r: FixedRoot(**b, total_steps=t, root_degree=r), bounds(), TOTAL, DEGREE),
    discrete(),
)
MIXED = st.builds(
    lambda b, short, full, total: Mixed(**b, short_steps=short, full_steps=full, total_steps=total),
    bounds(),
    st.integers(1, 300),
    st.integers(1, 300),
    st.none() | TOTAL,
)
ADAPTIVE = st.builds(
    lambda b, tolerance, n: Adaptive(**b, tolerance=tolerance, multiples_per_validation=n),
    bounds(),
    st.floats(1, 3),
    st.integers(1, 4),
)
CUSTOM = st.builds(lambda b: Custom(**b, function="recipes.lengths:by_loss"), bounds())


@given(RISING, STEP)
def test_a_length_rises_between_its_bounds_in_multiples(schedule: SeqlenSchedule, step: int) -> None:
    length = schedule.seqlen(step)
    assert schedule.start <= length <= schedule.full
    assert schedule.seqlen(step + 1) >= length
    listed = isinstance(schedule, FixedDiscrete)
    assert listed or length in (schedule.start, schedule.full) or length % schedule.multiple == 0


@given(st.one_of(RISING, MIXED), STEP, st.integers(0, 10_000))
def test_an_anchor_moves_the_whole_schedule(schedule: SeqlenSchedule, step: int, by: int) -> None:
    moved = schedule.anchored_at(schedule.anchor_step + by)
    assert moved.seqlen(step + by) == schedule.seqlen(step)
    assert schedule.end_step is None or moved.end_step == schedule.end_step + by


@given(st.one_of(RISING, MIXED))
def test_the_length_stays_as_it_is_from_the_end_on(schedule: SeqlenSchedule) -> None:
    end = schedule.end_step
    if end is None:
        assert isinstance(schedule, Mixed)
        return
    assert len({schedule.seqlen(step) for step in (end, end + 1, end + 999)}) == 1
    if not isinstance(schedule, FixedDiscrete):
        assert schedule.seqlen(end) == schedule.full


@given(st.one_of(RISING, MIXED, ADAPTIVE, CUSTOM))
def test_every_pacing_is_read_as_it_was_written(schedule: SeqlenSchedule) -> None:
    told = json.loads(dump_json(schedule.to_json()))
    assert SeqlenSchedule.from_json(told) == schedule
    assert told == schedule.to_json()  # a report is compared with the decision as JSON
    assert str(schedule)


def test_a_linear_warmup_is_written_as_it_was_before_there_were_other_pacings() -> None:
    old = {"start": 8, "full": 128, "total_steps": 60, "anchor_step": 10, "multiple": 8}
    assert FixedLinear(start=8, full=128, total_steps=60, anchor_step=10).to_json() == old
    assert SeqlenSchedule.from_json(old) == SeqlenSchedule.from_json(old | {"pacing": "fixed_linear"})


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        (FixedLinear(start=8, full=128, total_steps=60, anchor_step=100), {100: 8, 101: 8, 130: 64, 160: 128}),
        (FixedLinear(start=8, full=128, total_steps=0), {1: 128}),
        (FixedRoot(start=8, full=108, total_steps=100, multiple=1), {1: 18, 25: 58, 100: 108}),
        (FixedRoot(start=8, full=108, total_steps=1000, root_degree=3, multiple=1), {1: 18, 999: 107, 1000: 108}),
        (
            FixedDiscrete(start=128, full=3072, difficulties=(128, 3072), max_steps=(500,), anchor_step=7),
            {1: 128, 507: 128, 508: 3072},
        ),
        (Mixed(start=128, full=1024), {1: 128, 900: 128, 901: 1024, 1000: 1024, 1001: 128, 10**9: 1024}),
        (Mixed(start=128, full=1024, total_steps=0), {0: 1024, 1: 1024}),
        (Mixed(start=128, full=1024, total_steps=1500, anchor_step=50), {950: 128, 951: 1024, 1550: 128, 1551: 1024}),
    ],
)
def test_each_pacing_gives_what_its_formula_says(schedule: SeqlenSchedule, lengths: dict[int, int]) -> None:
    assert {step: schedule.seqlen(step) for step in lengths} == lengths
    assert {step: schedule.foreseen(step) for step in lengths} == lengths


ADAPT = Adaptive(start=8, full=32, anchor_step=100)


def test_an_adaptive_warmup_lengthens_while_perplexity_stays_near_its_best() -> None:
    state, lengths = ADAPT.begin(), []
    for step, perplexity in ((110, 50.0), (120, 64.9), (130, 65.1), (140, math.nan), (150, 40.0), (160, 53.0)):
        state = ADAPT.after_validation(state, perplexity, step)
        lengths.append(ADAPT.seqlen(step + 1, state))
    assert lengths == [16, 24, 24, 24, 32, 32]
    assert state.best_perplexity == 40.0


def test_a_validation_that_is_repeated_after_a_resume_counts_once() -> None:
    once = ADAPT.after_validation(ADAPT.begin(), 50.0, 110)
    assert ADAPT.after_validation(once, 50.0, 110) == once
    assert ADAPT.after_validation(once, 1.0, 104) == once


def test_an_adaptive_warmup_that_was_re_anchored_begins_anew() -> None:
    grown = ADAPT.after_validation(ADAPT.begin(), 50.0, 110)
    moved = ADAPT.anchored_at(300)
    assert moved.seqlen(301, grown) == 8
    assert moved.after_validation(grown, 99.0, 310) == AdaptiveState(
        length=16, best_perplexity=99.0, validated_step=310, anchor_step=300
    )


@given(ADAPTIVE, st.lists(st.floats(1, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=30), st.integers(0, 30))
def test_an_adaptive_warmup_goes_on_exactly_from_its_saved_state(
    schedule: Adaptive, perplexities: list[float], cut: int
) -> None:
    def follow(state: AdaptiveState, begin: int, end: int) -> AdaptiveState:
        for nth in range(begin, end):
            before = state.length
            state = schedule.after_validation(state, perplexities[nth], schedule.anchor_step + 10 * (nth + 1))
            assert before <= state.length <= schedule.full
            assert state.length in (schedule.start, schedule.full) or state.length % schedule.multiple == 0
        return state

    cut = min(cut, len(perplexities))
    saved = follow(schedule.begin(), 0, cut)
    loaded = AdaptiveState.from_json(json.loads(dump_json(saved.to_json())))
    assert follow(loaded, cut, len(perplexities)) == follow(schedule.begin(), 0, len(perplexities))


@given(ADAPTIVE)
def test_an_adaptive_warmup_says_beforehand_only_what_it_knows(schedule: Adaptive) -> None:
    at = schedule.anchor_step
    assert schedule.foreseen(at + 1) == schedule.start
    assert (schedule.foreseen(at + 2) is None) == (schedule.end_step is None) == schedule.warms_up


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"length": 8}, "needs the key 'best_perplexity'"),
        (
            {"length": 8.5, "validated_step": 0, "anchor_step": 0, "best_perplexity": 1.0},
            "AdaptiveState.length should",
        ),
        ({"length": 8, "validated_step": 0, "anchor_step": 0, "best_perplexity": "nan"}, "best_perplexity"),
        ({"length": 8, "validated_step": 0, "anchor_step": 0, "best_perplexity": []}, "best_perplexity"),
    ],
)
def test_a_saved_state_that_is_something_else_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        AdaptiveState.from_json(wrong)


@given(bounds(), st.lists(st.integers(-50, 4000), min_size=1, max_size=50))
def test_a_function_of_the_users_is_bounded_as_every_pacing_is(told: dict[str, int], lengths: list[int]) -> None:
    named = Custom(**told, function="recipes:by_loss")
    found = named.resolved_by(lambda name: lambda t: lengths[t % len(lengths)] if name == "recipes:by_loss" else 0)
    for step in range(named.anchor_step, named.anchor_step + 60):
        length = found.seqlen(step)
        assert named.start <= length <= named.full
        assert length in (named.start, named.full) or length % named.multiple == 0
    assert found == named
    assert found.to_json() == named.to_json()
    assert named.foreseen(step) is None
    with pytest.raises(ConfigError, match="recipes:by_loss is known to the trainer alone"):
        named.seqlen(step)


def test_a_function_that_gives_no_length_is_said_to() -> None:
    odd: Any = lambda _: 8.5  # noqa: E731
    with pytest.raises(ConfigError, match=r"recipes:by_loss should give a whole number of tokens, not 8\.5"):
        Custom(start=8, full=128, function="recipes:by_loss").resolved_by(lambda _: odd).seqlen(1)


@given(RISING)
def test_a_staircase_is_the_schedule_at_every_step(schedule: SeqlenSchedule) -> None:
    listed = staircase(schedule)
    assert schedule.end_step is not None
    for step in range(schedule.anchor_step + 1, min(schedule.end_step, schedule.anchor_step + 300) + 3):
        assert listed.seqlen(step) == schedule.seqlen(step)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"start": 0, "full": 128, "total_steps": 1}, "start should lie between 1 and the full length 128, not 0"),
        ({"start": 8, "full": 4, "total_steps": 1}, "start should lie between"),
        ({"start": 8, "full": 128, "total_steps": -1}, "total_steps may not be negative"),
        ({"start": 8, "full": 128, "total_steps": 1, "multiple": 0}, "multiple should be at least 1"),
        ({"start": 8, "full": 128, "total_steps": 1.5}, "FixedLinear.total_steps should be a whole number, not 1.5"),
        ({"start": 8, "full": 128, "total_steps": True}, "should be a whole number, not True"),
        ({"start": 8, "full": 128}, "FixedLinear needs the key 'total_steps'"),
        (
            {"start": 8, "full": 128, "total_steps": 1, "root_degree": 2},
            "has no key 'root_degree'; the right",
        ),
        ({"pacing": "quick", "start": 8, "full": 128}, "no seqlen pacing 'quick'; there are adaptive, custom, fixed_d"),
        ({"pacing": ["mixed"], "start": 8, "full": 128}, "no seqlen pacing"),
        (
            {"pacing": "fixed_root", "start": 8, "full": 128, "total_steps": 9, "root_degree": 0},
            "root_degree should be",
        ),
        (
            {"pacing": "fixed_discrete", "start": 8, "full": 128, "difficulties": [8, 64], "max_steps": []},
            "2 difficulties need 1 max_steps and not 0",
        ),
        (
            {"pacing": "fixed_discrete", "start": 8, "full": 128, "difficulties": [64, 8], "max_steps": [5]},
            "difficulties should rise from 8 to 128",
        ),
        (
            {"pacing": "fixed_discrete", "start": 8, "full": 128, "difficulties": [8, 64, 128], "max_steps": [5, 5]},
            "max_steps should rise",
        ),
        (
            {"pacing": "fixed_discrete", "start": 8, "full": 128, "difficulties": [8, "64"], "max_steps": [5]},
            "should be a whole number, not '64'",
        ),
        ({"pacing": "mixed", "start": 8, "full": 128, "short_steps": 0}, "short_steps and full_steps"),
        ({"pacing": "adaptive", "start": 8, "full": 128, "tolerance": 0.9}, "tolerance should be at least 1"),
        ({"pacing": "adaptive", "start": 8, "full": 128, "multiples_per_validation": 0}, "at least 1"),
        ({"pacing": "custom", "start": 8, "full": 128, "function": "os.system"}, "named 'module:function'"),
        ({"pacing": "custom", "start": 8, "full": 128, "function": "a b:c"}, "named 'module:function'"),
        (
            {"pacing": "custom", "start": 8, "full": 128, "function": "a:b", "resolved": 1},
            "has no key 'resolved'",
        ),
    ],
)
def test_a_pacing_that_makes_no_sense_is_refused_by_its_key(told: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SeqlenSchedule.from_json(told)
    assert says in str(caught.value)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(0, 40), st.integers(0, 10**6), st.integers(0, 10**7))
def test_a_batch_grows_in_multiples_of_the_ranks_to_the_full_one(
    start: int, increment: int, increments: int, ramp: int, consumed: int
) -> None:
    full = start + increment * increments
    schedule = BatchSizeSchedule(start=start, full=full, increment=increment, ramp_samples=ramp, anchor_samples=1000)
    for multiple in (n for n in range(1, full + 1) if full % n == 0):
        batch = schedule.samples(consumed, multiple_of=multiple)
        assert batch % multiple == 0
        assert min(start, multiple) <= batch <= full
        assert schedule.samples(consumed + 50, multiple_of=multiple) >= batch
        assert schedule.samples(schedule.end_samples, multiple_of=multiple) == full
    moved = schedule.anchored_at(1000 + 77)
    assert moved.samples(consumed + 77) == schedule.samples(consumed)
    assert BatchSizeSchedule.from_json(json.loads(dump_json(schedule.to_json()))) == schedule


def test_the_batch_grows_as_megatrons_does() -> None:
    """--rampup-batch-size 16 16 1000000 with a global batch of 256: 15 increments of 66,666.7 samples each."""
    schedule = BatchSizeSchedule(start=16, full=256, increment=16, ramp_samples=1_000_000)
    grown = {0: 16, 66_666: 16, 66_667: 32, 500_000: 128, 999_999: 240, 1_000_001: 256}
    assert {consumed: schedule.samples(consumed) for consumed in grown} == grown
    assert schedule.samples(66_667, multiple_of=64) == 64
    with pytest.raises(ConfigError, match="256 does not divide over 48 samples"):
        schedule.samples(0, multiple_of=48)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"start": 32, "full": 16, "increment": 16, "ramp_samples": 1}, "start should lie between 1 and"),
        ({"start": 16, "full": 50, "increment": 16, "ramp_samples": 1}, "does not grow in increments of 16"),
        ({"start": 16, "full": 48, "increment": 16, "ramp_samples": -1}, "may not be negative"),
    ],
)
def test_a_batch_warmup_that_makes_no_sense_is_refused(told: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BatchSizeSchedule.from_json(told)


def test_sequence_length_and_batch_do_not_warm_up_together() -> None:
    slw, batch = (
        FixedLinear(start=8, full=64, total_steps=9),
        BatchSizeSchedule(start=8, full=16, increment=8, ramp_samples=99),
    )
    with pytest.raises(ConfigError, match="both take tokens out of a batch, so leave one out"):
        refuse_beside_slw(slw, batch)
    refuse_beside_slw(replace(slw, total_steps=0), batch)
    refuse_beside_slw(slw, replace(batch, ramp_samples=0))
    refuse_beside_slw(None, batch)


@given(bounds(), TOTAL, STEP, st.integers(1, 3000))
def test_random_ltd_keeps_more_and_more_and_never_more_than_there_is(
    told: dict[str, int], total: int, step: int, seqlen: int
) -> None:
    schedule = RandomLtdSchedule(**told, total_steps=total)
    kept = schedule.kept_tokens(step)
    assert schedule.start <= kept <= schedule.full
    assert kept in (schedule.start, schedule.full) or kept % schedule.multiple == 0
    assert schedule.kept_tokens(step + 1) >= kept
    assert schedule.kept_tokens(step, seqlen) == min(kept, seqlen)
    assert schedule.kept_tokens(schedule.end_step) == schedule.full
    assert schedule.anchored_at(schedule.anchor_step + 5).kept_tokens(step + 5) == kept
    assert RandomLtdSchedule.from_json(json.loads(dump_json(schedule.to_json()))) == schedule


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"start": 256, "full": 128, "total_steps": 1}, "there is nothing to drop above it"),
        ({"start": 16, "full": 128, "total_steps": 1, "multiple": 0}, "multiple not below 1"),
        ({"start": 16, "full": 128, "total_steps": 1, "layers": [2, 1]}, "layers should be numbers from 0"),
        (
            {"start": 16, "full": 128, "total_steps": 1, "layers": "all"},
            "layers should be a list, not 'all'",
        ),
    ],
)
def test_random_ltd_that_makes_no_sense_is_refused(told: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RandomLtdSchedule.from_json(told)


@given(st.integers(1, 100), st.integers(0, 1000), DEGREE, st.integers(0, 500), STEP)
def test_a_percentile_rises_to_all_of_the_samples(
    start: int, total: int, degree: float, anchor: int, step: int
) -> None:
    schedule = DifficultySchedule(
        kind="percentile", start=start, full=100, total_steps=total, root_degree=degree, anchor_step=anchor
    )
    assert start <= schedule.difficulty(step) <= schedule.difficulty(step + 1) <= 100
    assert schedule.difficulty(schedule.end_step) == 100
    assert schedule.anchored_at(anchor + 9).difficulty(step + 9) == schedule.difficulty(step)
    curriculum = CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=schedule, index="/indexes/voc")})
    assert CurriculumSchedule.from_json(json.loads(dump_json(curriculum.to_json()))) == curriculum
    assert curriculum.anchored_at(7).metrics["voc"].difficulty == schedule.anchored_at(7)


def test_the_square_root_leaves_the_easy_samples_sooner() -> None:
    by_root = DifficultySchedule(kind="percentile", start=1, full=100, total_steps=100, root_degree=2)
    assert by_root.difficulty(25) == 50
    assert replace(by_root, root_degree=1).difficulty(25) == 25


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"kind": "rank", "start": 1, "full": 100}, 'a difficulty is a "value" or a "percentile", not'),
        ({"kind": "percentile", "start": 0, "full": 100}, "percentiles lie between 1 and 100"),
        ({"kind": "percentile", "start": 1, "full": 101}, "percentiles lie between 1 and 100"),
        ({"kind": "value", "start": 9, "full": 8}, "start should lie between 0 and the full one, 8, not 9"),
        ({"kind": "value", "start": 1, "full": 8, "root_degree": "sqrt"}, "root_degree should be a number, not 'sqrt'"),
        ({"kind": "value", "start": 1, "full": 8, "difficulties": [1, 8]}, "2 difficulties need 1 max_steps"),
        (
            {"kind": "value", "start": 1, "full": 8, "difficulties": [1, 8], "max_steps": [3], "total_steps": 4},
            "say the same thing",
        ),
    ],
)
def test_a_difficulty_that_makes_no_sense_is_refused(told: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        DifficultySchedule.from_json(told)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([], "curriculum.metrics should be an object"),
        ({"voc": {"index": "x"}}, "curriculum.metrics.voc: MetricSchedule needs the key 'difficulty'"),
        (
            {"voc": {"index": "", "difficulty": {"kind": "value", "start": 1, "full": 2}}},
            "curriculum.metrics.voc: a curriculum metric's index is a folder",
        ),
        (
            {"voc": {"index": "x", "difficulty": {"kind": "value", "start": 1}}},
            "curriculum.metrics.voc: MetricSchedule.difficulty: DifficultySchedule needs the key 'full'",
        ),
    ],
)
def test_a_curriculum_that_makes_no_sense_is_refused_by_its_metric(told: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CurriculumSchedule.from_json(told)


def test_batches_are_shortened_in_one_of_four_ways() -> None:
    assert [shortening(how) for how in ("truncate", "reshape", "truncate_keep", None)] == [
        "truncate",
        "reshape",
        "truncate_keep",
        None,
    ]
    with pytest.raises(ConfigError, match="one of truncate, reshape, truncate_keep, reshape_keep, not by 'cut'"):
        shortening("cut")


RAMP_OF_TR8 = BatchSizeSchedule(start=16, full=2048, increment=16, ramp_samples=6_000_000)
LR_OF_TR8 = LrSchedule(
    peak=6e-5, minimum=6e-6, warmup=216_320, decay_start=216_320, decay_end=126_953_125, unit="samples"
)
TR8 = SlwRun(full_seqlen=2048, batch=RAMP_OF_TR8, lr=LR_OF_TR8, total_samples=300_000_000)

TRACKS = st.builds(
    Track,
    full=st.just(32),
    seqlen=st.builds(
        lambda start, total: FixedLinear(start=start, full=32, total_steps=total),
        st.integers(1, 32),
        st.integers(0, 30),
    ),
    batch=st.builds(
        lambda start, ramp: BatchSizeSchedule(start=start, full=6, increment=1, ramp_samples=ramp),
        st.integers(1, 6),
        st.integers(0, 90),
    ),
    shorten=st.sampled_from(("truncate", "reshape", "truncate_keep", "reshape_keep")),
    random_ltd=st.none() | st.builds(lambda t: RandomLtdSchedule(start=8, full=32, total_steps=t), st.integers(0, 30)),
    layers=st.integers(1, 5),
)


def one_by_one(track: Track, steps: int) -> list[int]:
    """Effective tokens after each of the steps, as the trainer adds them up, x layers."""
    samples, seen, found = 0, 0, [0]
    for step in range(1, steps + 1):
        assert track.seqlen is not None
        batch, length = track.batch.samples(samples), track.seqlen.seqlen(step)
        rows = batch * (32 // length if track.shorten.startswith("reshape") else 1)
        kept = track.random_ltd.kept_tokens(step, length) if track.random_ltd else length
        seen += rows * sum(length if layer in (0, track.layers - 1) else kept for layer in range(track.layers))
        samples += batch
        found.append(seen)
    return found


@given(track=TRACKS, steps=st.integers(0, 60))
def test_the_tokens_of_steps_to_come_are_those_that_the_steps_add_up_to(track: Track, steps: int) -> None:
    after = one_by_one(track, steps)
    assert track.reach(Position(), step=steps).tokens == after[-1] // track.layers
    assert track.reach(Position(), step=10**9).tokens > 10**9  # what repeats itself is not counted one by one
    for tokens in (1, after[-1] // track.layers):
        needed = track.reach(Position(), tokens=tokens).step
        assert one_by_one(track, needed)[-1] >= tokens * track.layers
        assert needed == 0 or one_by_one(track, needed - 1)[-1] < tokens * track.layers


@pytest.mark.parametrize(("unforeseen", "tokens"), [("full", 2 * (8 + 32 + 32)), ("start", 2 * (8 + 8 + 8))])
def test_a_length_that_is_not_known_beforehand_counts_as_the_caller_says(
    unforeseen: Literal["full", "start"], tokens: int
) -> None:
    batch = BatchSizeSchedule(start=2, full=2, increment=1, ramp_samples=0)
    track = Track(full=32, batch=batch, seqlen=Adaptive(start=8, full=32), unforeseen=unforeseen)
    assert track.reach(Position(), step=3).tokens == tokens


@given(
    warmup=st.integers(0, 60),
    longer=st.integers(0, 200),
    span=st.integers(-30, 200),
    anchor=st.integers(0, 250),
    step=st.integers(1, 500),
)
def test_a_restarts_lr_is_never_above_the_planned_one_and_equals_it_after_the_warmup(
    warmup: int, longer: int, span: int, anchor: int, step: int
) -> None:
    planned = LrSchedule(
        peak=1.0, warmup=warmup, decay_start=warmup, decay_end=max(1, warmup + span), minimum=0.1, unit="steps"
    )
    restarted = replace(planned, warmup=warmup + longer, anchor=anchor)
    assert restarted.lr(step=step) <= planned.lr(step=step)
    if step >= anchor + warmup + longer:
        assert restarted.lr(step=step) == planned.lr(step=step)
    largest = restarted.largest(1, 500)
    assert largest is not None
    assert largest[0] == restarted.lr(step=largest[1]) == max(restarted.lr(step=s) for s in range(1, 501))


def test_the_re_sized_warmup_of_tr8_is_what_its_people_set_by_hand() -> None:
    """tr8b's second experiment: 3_750_000 samples, from an average length of about 100 that somebody guessed."""
    by_hand = FixedLinear(start=64, full=2048, total_steps=36_000)
    changed = slw_changes(TR8, by_hand)
    assert warmup_tokens(TR8) == 216_320 * 2048
    assert changed.lr is not None
    assert changed.lr.warmup == pytest.approx(3_750_000, rel=0.05)
    assert (changed.batch.warms_up, changed.batch.full) == (False, 2048)
    assert changed.lr.decay_end == 126_953_125 * 2048  # its LR_DECAY_TOKENS
    assert (changed.lr.unit, changed.lr.decay_unit, changed.lr.decay_start) == ("samples", "tokens", 216_320 * 2048)
    assert changed.total_tokens == 300_000_000 * 2048


def test_switching_slw_on_changes_five_things() -> None:
    lr = LrSchedule(peak=6e-4, warmup=3000, decay_start=3000, decay_end=300_000)
    batch = BatchSizeSchedule(start=64, full=512, increment=64, ramp_samples=100_000)
    at = Position(step=1000, samples=88_000, tokens=88_000 * 1024)
    run = SlwRun(full_seqlen=1024, batch=batch, lr=lr, total_steps=300_000, at=at)
    slw = FixedLinear(start=64, full=1024, total_steps=11_000, anchor_step=1000)
    changed = slw_changes(run, slw)
    ramped = Track(full=1024, batch=batch)
    assert (changed.schedule, changed.batch.warms_up) == (slw, False)
    assert changed.total_tokens == ramped.reach(Position(), step=300_000).tokens
    assert changed.lr is not None
    assert changed.lr.decay_unit == "tokens"
    assert changed.lr.decay_end == changed.total_tokens
    assert changed.lr.warmup > lr.warmup
    assert slw_changes(run, slw, shorten="reshape").lr == lr
    over = replace(run, at=Position(step=3000, samples=1_200_000, tokens=1_200_000 * 1024))
    resized = slw_changes(over, slw.anchored_at(3000)).lr
    assert resized is not None
    assert resized.warmup == lr.warmup
    with pytest.raises(ConfigError, match="does not warm up"):
        slw_changes(run, replace(slw, total_steps=0))


def test_a_warmup_in_tokens_stays_one_unless_the_run_can_not_count_them() -> None:
    lr = LrSchedule(peak=1.0, warmup=375_000_000, decay_start=375_000_000, decay_end=10**12, unit="tokens")
    run, slw = replace(TR8, lr=lr), FixedLinear(start=64, full=2048, total_steps=36_000)
    assert slw_changes(run, slw).lr == lr
    counted = slw_changes(replace(run, counts="samples"), slw).lr
    assert counted is not None
    assert (counted.unit, counted.decay_unit, counted.decay_end) == ("samples", "tokens", 10**12)
    assert counted.warmup == pytest.approx(3_500_000, rel=0.01)


@given(
    full=st.sampled_from([64, 128, 512]),
    start=st.sampled_from([8, 16, 64]),
    total=st.integers(1, 400),
    step=st.integers(0, 300),
    warmup=st.integers(1, 400),
    ramp=st.integers(0, 3000),
    unit=st.sampled_from(["steps", "samples"]),
)
def test_at_the_end_of_the_re_sized_warmup_the_run_has_seen_what_its_own_warmup_takes(
    full: int, start: int, total: int, step: int, warmup: int, ramp: int, unit: str
) -> None:
    """Within one step, whatever the ramp, the schedule and the target."""
    batch = BatchSizeSchedule(start=4, full=16, increment=4, ramp_samples=ramp)
    own = Track(full=full, batch=batch)
    at = own.reach(Position(), step=step)
    lr = LrSchedule(peak=1.0, warmup=warmup if unit == "steps" else 9 * warmup, decay_end=0, unit=unit)
    slw = FixedLinear(start=min(start, full // 2), full=full, total_steps=total, anchor_step=step)
    run = SlwRun(full_seqlen=full, batch=batch, at=at, lr=lr, total_steps=1000)
    wanted, resized = warmup_tokens(run), slw_changes(run, slw).lr
    assert resized is not None
    if wanted is None:
        assert resized.warmup == lr.warmup
        return
    samples, tokens, made = at.samples, at.tokens, at.step
    while (made if unit == "steps" else samples) < resized.warmup:
        made += 1
        samples, tokens = samples + 16, tokens + 16 * slw.seqlen(made)
    assert 0 <= tokens - wanted < 16 * slw.seqlen(made)
    ends = own.reach(Position(), **{"step" if unit == "steps" else "samples": lr.warmup})
    assert 0 <= ends.tokens - wanted < 16 * full


@pytest.mark.parametrize(("parameters", "start"), [(None, 8), (125e6, 8), (999e6, 8), (1e9, 64), (104e9, 64)])
def test_slw_starts_at_8_for_millions_of_parameters_and_at_64_for_billions(
    parameters: float | None, start: int
) -> None:
    assert start_for_size(parameters) == start


def test_the_presets_are_the_papers_tables() -> None:
    gpt = {share: gpt_seqlen(full_steps=286_102, data_share=share) for share in (1, 2 / 3, 0.5)}
    assert {share: (s.start, s.full, s.total_steps) for share, s in gpt.items()} == {
        1: (80, 2048, 110_000),
        2 / 3: (80, 2048, 73_333),
        0.5: (80, 2048, 55_000),
    }
    assert gpt_rarity(full_steps=286_102).start == 1
    ltd = gpt_random_ltd(full_steps=286_102, data_share=0.5)
    assert (ltd.start, ltd.full, ltd.total_steps) == (128, 2048, 100_000)
    assert (bert_seqlen(full_steps=2_000_000).start, bert_seqlen(full_steps=2_000_000).total_steps) == (128, 960_000)
    assert bert_rarity(full_steps=2_000_000).start == 5
    by_value = bert_rarity_by_value(full_steps=2_000_000, full_value=9000)
    assert (by_value.kind, by_value.start, by_value.root_degree) == ("value", 600, 2)
    schedule = lr(peak=2e-4, full_tokens=300 * 10**9, warmup_tokens=3 * 10**9, data_share=0.5)
    assert schedule.peak == 4e-4
    assert schedule.lr(step=1, consumed_tokens=150 * 10**9) == pytest.approx(1e-6)
    with pytest.raises(ConfigError, match="data share"):
        gpt_seqlen(full_steps=10, data_share=2)
    assert gpt_seqlen(full_steps=100, full_seqlen=64).warms_up is False


@pytest.mark.parametrize(("minimum", "allowed"), [(0.0, True), (1e-3, True), (1.1e-3, False), (-1e-9, False)])
def test_the_least_lr_lies_between_nothing_and_the_peak(minimum: float, allowed: bool) -> None:
    made = contextlib.nullcontext() if allowed else pytest.raises(ConfigError)
    with made:
        LrSchedule(peak=1e-3, warmup=10, decay_end=100, minimum=minimum)


@pytest.mark.parametrize("decay_end", [100, 10])
def test_an_lr_stays_at_its_least_after_the_decay(decay_end: int) -> None:
    """Also where the decay is over with the warmup."""
    schedule = LrSchedule(peak=1e-3, warmup=10, decay_end=decay_end, minimum=1e-4)
    assert [schedule.lr(step=step) for step in (101, 150, 200, 10_000)] == pytest.approx([1e-4] * 4)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_of_the_data_that_can_not_be_is_refused_for_the_lr_too(share: float) -> None:
    with pytest.raises(ConfigError, match="a data share lies above 0 and is 1 at most"):
        lr(peak=2e-4, full_tokens=300 * 10**9, warmup_tokens=3 * 10**9, data_share=share)
