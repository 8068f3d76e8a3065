"""Schedules: what each gives at a step, between which bounds, how anchors move them, and how they are read again."""

from __future__ import annotations

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
    trained_tokens,
)
from sentinel.vocabulary.pacing import track as track_module
from sentinel.vocabulary.pacing.presets import (
    gpt_random_ltd,
    gpt_rarity,
    gpt_seqlen,
    lr,
)
from sentinel.vocabulary.pacing.seqlen import AdaptiveState
from sentinel.vocabulary.pacing.slw_changes import warmup_tokens
from tests.support.there import there

STEP = st.integers(0, 3000)


def adapted(length: int, **more: Any) -> AdaptiveState:
    """A state in which nothing but what is given has been decided."""
    return AdaptiveState(
        **({"length": length, "best_perplexity": math.inf, "validated_step": 0, "anchor_step": 0} | more)
    )


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


@given(RISING)
def test_a_staircase_is_the_schedule_at_every_step(schedule: SeqlenSchedule) -> None:
    listed = staircase(schedule)
    for step in range(schedule.anchor_step + 1, min(there(schedule.end_step), schedule.anchor_step + 300) + 3):
        assert listed.seqlen(step) == schedule.seqlen(step)


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


def test_batches_are_shortened_in_one_of_four_ways() -> None:
    assert [shortening(how) for how in ("truncate", "reshape", "truncate_keep", None)] == [
        *("truncate", "reshape", "truncate_keep", None),
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
        batch, length = track.batch.samples(samples), there(track.seqlen).seqlen(step)
        rows = batch * (32 // length if track.shorten.startswith("reshape") else 1)
        kept = track.random_ltd.kept_tokens(step, length) if track.random_ltd else length
        seen += rows * sum(length if layer in (0, track.layers - 1) else kept for layer in range(track.layers))
        samples += batch
        found.append(seen)
    return found


@given(track=TRACKS, steps=st.integers(0, 60))
def test_the_tokens_of_steps_to_come_are_those_that_the_steps_add_up_to(track: Track, steps: int) -> None:
    after = one_by_one(track, steps)
    assert track.reach(Position(), "steps", steps).tokens == after[-1] // track.layers
    assert track.reach(Position(), "steps", 10**9).tokens > 10**9  # what repeats itself is not counted one by one
    for tokens in (1, after[-1] // track.layers):
        needed = track.reach(Position(), "tokens", tokens).step
        assert one_by_one(track, needed)[-1] >= tokens * track.layers
        assert needed == 0 or one_by_one(track, needed - 1)[-1] < tokens * track.layers


@pytest.mark.parametrize(("unforeseen", "tokens"), [("full", 2 * (8 + 32 + 32)), ("start", 2 * (8 + 8 + 8))])
def test_a_length_that_is_not_known_beforehand_counts_as_the_caller_says(
    unforeseen: Literal["full", "start"], tokens: int
) -> None:
    batch = BatchSizeSchedule(start=2, full=2, increment=1, ramp_samples=0)
    track = Track(full=32, batch=batch, seqlen=Adaptive(start=8, full=32), unforeseen=unforeseen)
    assert track.reach(Position(), "steps", 3).tokens == tokens


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
    largest = there(restarted.largest(1, 500))
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


def test_slw_beside_a_batch_ramp_keeps_the_tokens_of_the_run_and_needs_a_warmup() -> None:
    batch = BatchSizeSchedule(start=64, full=512, increment=64, ramp_samples=100_000)
    run = SlwRun(full_seqlen=1024, batch=batch, total_steps=300_000, at=Position(step=1000, samples=88_000))
    slw = FixedLinear(start=64, full=1024, total_steps=11_000, anchor_step=1000)
    changed = slw_changes(run, slw)
    assert (changed.seqlen, changed.batch.warms_up) == (slw, False)
    assert changed.total_tokens == Track(full=1024, batch=batch).reach(Position(), "steps", 300_000).tokens
    with pytest.raises(ConfigError, match="does not warm up"):
        slw_changes(run, replace(slw, total_steps=0))


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
    at = own.reach(Position(), "steps", step)
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
    ends = own.reach(Position(), unit, lr.warmup)
    assert 0 <= ends.tokens - wanted < 16 * full


@pytest.mark.parametrize(
    ("parameters", "start"), [(None, 8), (0.0, 8), (125e6, 8), (1e9 - 1, 8), (1e9, 64), (104e9, 64)]
)
def test_slw_starts_at_8_for_millions_of_parameters_and_at_64_for_billions(
    parameters: float | None, start: int
) -> None:
    assert start_for_size(parameters) == start


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01])
def test_a_share_of_the_data_that_can_not_be_is_refused_for_the_lr_too(share: float) -> None:
    with pytest.raises(ConfigError, match="a data share lies above 0 and is 1 at most"):
        lr(peak=2e-4, full_tokens=300 * 10**9, warmup_tokens=3 * 10**9, data_share=share)


# What each schedule takes at the bounds of its fields, and refuses beyond them


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (
            BatchSizeSchedule(start=2, full=8, increment=3, ramp_samples=9),
            [{"start": 8}, {"increment": 1}, {"increment": 6}, {"ramp_samples": 0}],
            [
                *({"start": 0, "increment": 4}, {"start": 9}, {"increment": 0}, {"increment": -1}, {"increment": 4}),
                {"ramp_samples": -1},
            ],
        ),
        (
            RandomLtdSchedule(start=2, full=8, total_steps=9),
            [
                *({"start": 1}, {"start": 8}, {"total_steps": 0}, {"multiple": 1}),
                *({"layers": ()}, {"layers": (0,)}, {"layers": (0, 5)}),
            ],
            [
                *({"start": 0}, {"start": 9}, {"total_steps": -1}, {"multiple": 0}),
                *({"layers": (-1, 0)}, {"layers": (2, 1)}, {"layers": (1, 1)}),
            ],
        ),
        (
            DifficultySchedule(kind="value", start=2, full=8, total_steps=9),
            [{"start": 0}, {"start": 8}, {"full": 500}, {"total_steps": 0}, {"multiple": 1}, {"root_degree": 0.1}],
            [
                *({"start": -1}, {"start": 9}, {"total_steps": -1}, {"multiple": 0}, {"kind": "rank"}),
                *({"root_degree": 0.0}, {"root_degree": math.inf}, {"max_steps": (3,)}, {"difficulties": (2, 8)}),
                {"difficulties": (2, 8), "max_steps": (3,)},  # beside total_steps
            ],
        ),
        (
            DifficultySchedule(kind="percentile", start=2, full=8, total_steps=9),
            [{"start": 1}, {"start": 8}, {"full": 100}],
            [{"start": 0}, {"full": 101}],
        ),
        (
            FixedLinear(start=2, full=8, total_steps=9),
            [{"start": 1}, {"start": 8}, {"total_steps": 0}, {"multiple": 1}],
            [{"start": 0}, {"start": 9}, {"total_steps": -1}, {"multiple": 0}],
        ),
        (
            FixedRoot(start=2, full=8, total_steps=9),
            [{"total_steps": 0}, {"root_degree": 0.1}, {"root_degree": 1}],
            [{"total_steps": -1}, {"root_degree": 0.0}, {"root_degree": math.inf}],
        ),
        (
            FixedDiscrete(start=2, full=8, difficulties=(2, 4, 8), max_steps=(3, 5)),
            [
                *({"max_steps": (0, 1)}, {"difficulties": (4, 4, 6)}, {"difficulties": (8,), "max_steps": ()}),
                {"difficulties": (2, 2), "max_steps": (0,)},
            ],
            [
                *({"max_steps": (-1, 1)}, {"max_steps": (3, 3)}, {"max_steps": (5, 3)}, {"max_steps": (3,)}),
                *({"difficulties": (1, 4, 8)}, {"difficulties": (2, 4, 9)}, {"difficulties": (4, 2, 8)}),
                {"difficulties": (), "max_steps": ()},
            ],
        ),
        (
            Mixed(start=2, full=8),
            [{"short_steps": 1}, {"full_steps": 1}, {"total_steps": 0}, {"total_steps": 1}],
            [{"short_steps": 0}, {"full_steps": 0}, {"total_steps": -1}],
        ),
        (
            Adaptive(start=2, full=8),
            [{"tolerance": 1.0}, {"tolerance": 1e9}, {"multiples_per_validation": 1}],
            [{"tolerance": 0.99}, {"tolerance": math.inf}, {"multiples_per_validation": 0}],
        ),
        (
            Custom(start=2, full=8, function="a:b"),
            [{"function": "a.b:c.d"}],
            [{"function": "a"}, {"function": "a:"}, {"function": ":b"}, {"function": "a:b-c"}, {"function": "a..b:c"}],
        ),
        (
            LrSchedule(peak=1.0, warmup=2, decay_end=9),
            [
                *({"warmup": 0}, {"decay_end": 0}, {"peak": 0.0}, {"unit": "samples"}, {"unit": "tokens"}),
                *({"decay_unit": "steps"}, {"decay_unit": "samples"}, {"decay_unit": "tokens"}, {"minimum": 1.0}),
            ],
            [
                *({"warmup": -1}, {"decay_end": -1}, {"peak": math.inf}, {"peak": math.nan}, {"peak": -1.0}),
                *({"unit": "epochs"}, {"decay_unit": "epochs"}, {"minimum": 1.1}, {"minimum": -1e-9}),
            ],
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_each_field_is_taken_up_to_its_bounds_and_refused_beyond_them(
    kind: Any, taken: list[dict[str, Any]], refused: list[dict[str, Any]]
) -> None:
    for fields in taken:
        assert replace(kind, **fields) is not None
    for fields in refused:
        with pytest.raises(ConfigError) as caught:
            replace(kind, **fields)
        said = str(caught.value)
        assert any(name in said or repr(value) in said for name, value in fields.items())


LINEAR = {"start": 8, "full": 128, "total_steps": 1}
DISCRETE = {"pacing": "fixed_discrete", "start": 8, "full": 128, "difficulties": [8, 64], "max_steps": [5]}
BY_LR = {"peak": 1, "warmup": 2, "decay_end": 0}
VALUE = {"kind": "value", "start": 1, "full": 8}
STATE = {"length": 8, "validated_step": 0, "anchor_step": 0, "best_perplexity": 1.0}


def of_voc(**told: Any) -> dict[str, Any]:
    return {"voc": {"index": "x", "difficulty": VALUE} | told}


@pytest.mark.parametrize(
    ("kind", "told", "says"),
    [
        (SeqlenSchedule, [], "a seqlen schedule is an object, not []"),
        (SeqlenSchedule, LINEAR | {"total_steps": 1.5}, "FixedLinear.total_steps should be a whole number, not 1.5"),
        (SeqlenSchedule, LINEAR | {"total_steps": True}, "should be a whole number, not True"),
        (SeqlenSchedule, {"start": 8, "full": 128}, "FixedLinear needs the key 'total_steps'"),
        (SeqlenSchedule, LINEAR | {"root_degree": 2}, "has no key 'root_degree'; the right"),
        (SeqlenSchedule, {"pacing": "quick"}, "no seqlen pacing 'quick'; there are adaptive, custom, fixed_d"),
        (SeqlenSchedule, {"pacing": ["mixed"]}, "no seqlen pacing"),
        (SeqlenSchedule, {"pacing": None}, "there is no seqlen pacing None"),
        (SeqlenSchedule, DISCRETE | {"difficulties": [8, "64"]}, "should be a whole number, not '64'"),
        (SeqlenSchedule, DISCRETE | {"difficulties": None}, "FixedDiscrete.difficulties should be a list, not None"),
        (SeqlenSchedule, DISCRETE | {"max_steps": []}, "2 difficulties need 1 max_steps and not 0"),
        (
            SeqlenSchedule,
            {"pacing": "custom", "start": 8, "full": 128, "function": "a:b", "resolved": 1},
            "has no key 'resolved'",
        ),
        (BatchSizeSchedule, LINEAR, "has no key 'total_steps'"),
        (RandomLtdSchedule, LINEAR | {"layers": "all"}, "layers should be a list, not 'all'"),
        (RandomLtdSchedule, LINEAR | {"layers": [1, "2"]}, "RandomLtdSchedule.layers[1] should be a whole number, not"),
        (DifficultySchedule, VALUE | {"root_degree": "sqrt"}, "root_degree should be a number, not 'sqrt'"),
        (CurriculumSchedule, [], "curriculum.metrics should be an object"),
        (CurriculumSchedule, {"voc": []}, "curriculum.metrics.voc: MetricSchedule should be an object, not []"),
        (
            CurriculumSchedule,
            {"voc": {"index": "x"}},
            "curriculum.metrics.voc: MetricSchedule needs the key",
        ),
        (CurriculumSchedule, of_voc(index=3), "MetricSchedule.index should be a string, not 3"),
        (CurriculumSchedule, of_voc(index=""), "curriculum.metrics.voc: a curriculum metric's index is a folder"),
        (
            CurriculumSchedule,
            of_voc(difficulty={"kind": "value", "start": 1}),
            "curriculum.metrics.voc: MetricSchedule.difficulty: DifficultySchedule needs the key 'full'",
        ),
        (LrSchedule, [], "LrSchedule should be an object, not []"),
        (LrSchedule, {"peak": 1.0, "warmup": 2}, "LrSchedule needs the key 'decay_end'"),
        *((LrSchedule, BY_LR | {"peak": v}, f"peak should be a number, not {v!r}") for v in ("1", True, None)),
        (LrSchedule, BY_LR | {"warmup": 2.5}, "warmup should be a whole number, not 2.5"),
        (LrSchedule, BY_LR | {"unit": 3}, "unit should be a string, not 3"),
        (LrSchedule, BY_LR | {"decay_unit": 3}, "decay_unit should be a string, not 3"),
        (LrSchedule, {"z": 1, "b": 2}, "LrSchedule has no key 'z'; the right ones are peak, warmup,"),
        (AdaptiveState, [], "AdaptiveState should be an object, not []"),
        (AdaptiveState, {"length": 8}, "needs the key 'best_perplexity'"),
        (AdaptiveState, STATE | {"length": 8.5}, "AdaptiveState.length should"),
        (AdaptiveState, STATE | {"length": True}, "AdaptiveState.length should be a whole number, not True"),
        *((AdaptiveState, STATE | {"best_perplexity": v}, "AdaptiveState.best_perplexity") for v in ("nan", [], None)),
        (AdaptiveState, STATE | {"more": 1}, "AdaptiveState has no key 'more'"),
    ],
)
def test_json_that_is_no_schedule_is_refused_by_its_key(kind: Any, told: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.from_json(told)
    assert says in str(caught.value)


def test_json_may_say_a_whole_number_as_a_float_and_leave_out_what_has_a_default() -> None:
    told = {"start": 8.0, "full": 32, "total_steps": 5, "layers": [1.0, 2]}
    found = RandomLtdSchedule.from_json(told)
    assert found == RandomLtdSchedule(start=8, full=32, total_steps=5, layers=(1, 2))
    assert [type(n) for n in (found.start, *(found.layers or ()))] == [int] * 3
    assert RandomLtdSchedule.from_json(told | {"layers": None}).layers is None
    assert RandomLtdSchedule.from_json(told | {"layers": (3,)}).to_json()["layers"] == [3]
    assert LrSchedule.from_json({"peak": 1, "warmup": 0, "decay_end": 0, "unit": "tokens"}).unit == "tokens"


def test_a_decay_unit_of_its_own_is_told_and_none_is_left_out() -> None:
    """As journals have held it since before there was one."""
    schedule = LrSchedule(peak=1.0, warmup=2, decay_end=9)
    told = {"peak": 1.0, "warmup": 2, "decay_end": 9, "decay_start": 0, "minimum": 0.0, "anchor": 0, "unit": "steps"}
    assert schedule.to_json() == told
    assert replace(schedule, decay_unit="tokens").to_json() == told | {"decay_unit": "tokens"}


# How each is written in a plan


SLW_8 = FixedLinear(start=8, full=128, total_steps=60, anchor_step=10)
VOC = DifficultySchedule(kind="percentile", start=1, full=100, total_steps=60, anchor_step=10)


@pytest.mark.parametrize(
    ("schedule", "read"),
    [
        (SLW_8, "8 -> 128 over 60 steps from 10"),
        (replace(SLW_8, total_steps=0), "128, not warmed up"),
        (replace(SLW_8, start=128), "128, not warmed up"),
        (FixedRoot(start=8, full=128, total_steps=60), "8 -> 128 by the root of degree 2 over 60 steps from 0"),
        (
            FixedDiscrete(start=8, full=128, difficulties=(8, 128), max_steps=(5,), anchor_step=10),
            "8 -> 128 in 2 stages up to step 16, from 10",
        ),
        (Mixed(start=8, full=128), "8 -> 128 in turn, 900 and 100 steps, for ever from 0"),
        (Mixed(start=8, full=128, total_steps=5), "8 -> 128 in turn, 900 and 100 steps, for 5 steps from 0"),
        (Adaptive(start=8, full=128), "8 -> 128 as validations allow, within 1.3 x the best perplexity, from 0"),
        (Custom(start=8, full=128, function="a:b"), "8 -> 128 by a:b from 0"),
        (
            BatchSizeSchedule(start=2, full=8, increment=3, ramp_samples=9, anchor_samples=4),
            "2 -> 8 by 3 over 9 samples from 4",
        ),
        (BatchSizeSchedule(start=8, full=8, increment=1, ramp_samples=9), "8, not warmed up"),
        (BatchSizeSchedule(start=2, full=8, increment=3, ramp_samples=0), "8, not warmed up"),
        (
            RandomLtdSchedule(start=8, full=32, total_steps=5, anchor_step=3),
            "8 -> 32 tokens over 5 steps from 3",
        ),
        (RandomLtdSchedule(start=32, full=32, total_steps=5), "all tokens"),
        (RandomLtdSchedule(start=8, full=32, total_steps=0), "all tokens"),
        (VOC, "1 % -> 100 % up to step 70 from 10"),
        (replace(VOC, kind="value"), "1 -> 100 up to step 70 from 10"),
        (
            CurriculumSchedule(
                metrics={
                    "voc": MetricSchedule(difficulty=VOC, index="i"),
                    "loss": MetricSchedule(difficulty=replace(VOC, kind="value", start=0), index="i"),
                }
            ),
            "voc 1 % -> 100 % up to step 70 from 10; loss 0 -> 100 up to step 70 from 10",
        ),
        (CurriculumSchedule(metrics={}), "nothing"),
    ],
)
def test_a_schedule_is_written_in_a_plan_with_its_lengths_and_its_anchor(schedule: object, read: str) -> None:
    assert str(schedule) == read


def test_a_curriculum_says_up_to_where_a_step_draws_and_when_all_of_it_is_over() -> None:
    later = MetricSchedule(difficulty=replace(VOC, kind="value", total_steps=100), index="i")
    both = CurriculumSchedule(metrics={"voc": MetricSchedule(difficulty=VOC, index="i"), "loss": later})
    assert both.at(40) == "voc up to 50 %, loss up to 30"
    assert both.end_step == 110
    assert CurriculumSchedule(metrics={}).end_step == 0


# Whether anything warms up at all, and where it ends


@pytest.mark.parametrize(
    ("schedule", "ends", "warms"),
    [
        (SLW_8, 70, True),
        (replace(SLW_8, total_steps=1), 11, True),
        (replace(SLW_8, total_steps=0), 10, False),
        (replace(SLW_8, start=128), 10, False),
        (FixedRoot(start=8, full=128, total_steps=60, anchor_step=10), 70, True),
        (FixedRoot(start=128, full=128, total_steps=60, anchor_step=10), 10, False),
        (FixedDiscrete(start=8, full=9, difficulties=(8, 9), max_steps=(0,), anchor_step=10), 11, True),
        (FixedDiscrete(start=8, full=9, difficulties=(9,), max_steps=(), anchor_step=10), 10, False),
        (Mixed(start=8, full=9, total_steps=5, anchor_step=10), 16, True),
        (Mixed(start=8, full=9, total_steps=0, anchor_step=10), 10, False),
        (Mixed(start=8, full=9), None, True),
        (Mixed(start=9, full=9), None, False),
        (Adaptive(start=8, full=9, anchor_step=10), None, True),
        (Adaptive(start=9, full=9, anchor_step=10), 10, False),
        (Custom(start=8, full=9, function="a:b"), None, True),
    ],
)
def test_a_length_warms_up_where_there_is_a_step_that_is_shorter(
    schedule: SeqlenSchedule, ends: int | None, warms: bool
) -> None:
    assert (schedule.end_step, schedule.warms_up) == (ends, warms)


@pytest.mark.parametrize(
    ("start", "ramp", "ends", "warms"), [(2, 9, 109, True), (2, 1, 101, True), (2, 0, 100, False), (8, 9, 100, False)]
)
def test_a_batch_warms_up_where_there_is_a_step_that_is_smaller(start: int, ramp: int, ends: int, warms: bool) -> None:
    schedule = BatchSizeSchedule(start=start, full=8, increment=2, ramp_samples=ramp, anchor_samples=100)
    assert (schedule.end_samples, schedule.warms_up) == (ends, warms)
    assert [schedule.samples(consumed) for consumed in (0, 100)] == [start if warms else 8] * 2
    assert schedule.samples(ends) == 8


def test_a_batch_divides_over_at_least_one_sample_at_a_time() -> None:
    schedule = BatchSizeSchedule(start=2, full=8, increment=2, ramp_samples=9)
    assert [schedule.samples(0, multiple_of=n) for n in (1, 2, 4, 8)] == [2, 2, 4, 8]
    for multiple_of in (0, -1, 3):
        with pytest.raises(ConfigError, match=f"does not divide over {multiple_of} samples"):
            schedule.samples(0, multiple_of=multiple_of)


@pytest.mark.parametrize(
    ("fields", "ends", "found"),
    [
        ({"total_steps": 10}, 110, {90: 10, 100: 10, 105: 12, 109: 14, 110: 15, 999: 15}),
        ({"total_steps": 0}, 100, {100: 15, 101: 15}),
        ({"total_steps": 10, "start": 15}, 100, {100: 15, 101: 15}),
        ({"difficulties": (10, 13, 15), "max_steps": (2, 4)}, 105, {102: 10, 103: 13, 104: 13, 105: 15}),
        ({"difficulties": (13,)}, 100, {101: 13, 999: 13}),
        ({"total_steps": 10, "multiple": 4}, 110, {101: 10, 104: 12, 109: 12, 110: 15}),
        ({"total_steps": 100, "root_degree": 2.0}, 200, {125: 12, 164: 14, 199: 14, 200: 15}),
    ],
)
def test_a_difficulty_rises_as_its_formula_or_its_stages_say(
    fields: dict[str, Any], ends: int, found: dict[int, int]
) -> None:
    schedule = DifficultySchedule(**({"kind": "value", "start": 10, "full": 15, "anchor_step": 100} | fields))
    assert {step: schedule.difficulty(step) for step in found} == found
    assert schedule.end_step == ends


@pytest.mark.parametrize(("start", "total", "ends", "drops"), [(8, 9, 19, True), (8, 0, 10, False), (20, 9, 10, False)])
def test_random_ltd_drops_where_there_is_a_step_that_keeps_less(start: int, total: int, ends: int, drops: bool) -> None:
    schedule = RandomLtdSchedule(start=start, full=20, total_steps=total, anchor_step=10)
    assert (schedule.end_step, schedule.drops, schedule.multiple) == (ends, drops, 16)
    assert schedule.kept_tokens(10) == (8 if drops else 20)
    assert schedule.kept_tokens(18) == (16 if drops else 20)  # 18.7, in multiples of 16
    assert schedule.kept_tokens(19) == 20  # which is none


# Lengths


@pytest.mark.parametrize(
    ("schedule", "listed"),
    [
        (FixedLinear(start=8, full=24, total_steps=4), ((8, 16, 24), (1, 3))),
        (FixedLinear(start=8, full=24, total_steps=0), ((24,), ())),
        (FixedLinear(start=8, full=24, total_steps=1), ((24,), ())),
        (FixedLinear(start=8, full=20, total_steps=4), ((8, 16, 20), (2, 3))),
        (Mixed(start=8, full=24, short_steps=3, total_steps=3), ((8, 24), (3,))),
    ],
)
def test_a_staircase_has_one_stage_for_each_length(
    schedule: SeqlenSchedule, listed: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    for anchor in (0, 30):
        found = staircase(schedule.anchored_at(anchor))
        assert found == FixedDiscrete(
            start=8, full=schedule.full, anchor_step=anchor, difficulties=listed[0], max_steps=listed[1]
        )


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (Mixed(start=8, full=24), "a seqlen pacing that is mixed can't be listed"),
        (Adaptive(start=8, full=24), "a seqlen pacing that is adaptive can't be listed"),
        (Mixed(start=8, full=24, short_steps=1, full_steps=1, total_steps=5), "difficulties should rise"),
    ],
)
def test_lengths_that_can_not_be_listed_are_refused(schedule: SeqlenSchedule, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        staircase(schedule)


def test_the_first_steps_of_a_round_are_short_also_before_the_anchor() -> None:
    schedule = Mixed(start=8, full=24, short_steps=2, full_steps=3, anchor_step=10)
    assert [schedule.seqlen(step) for step in (5, *range(10, 22))] == [8, 8, 8, 8, 24, 24, 24, 8, 8, 24, 24, 24, 8]


def test_a_validation_at_the_tolerance_itself_lengthens_by_its_multiples() -> None:
    schedule = Adaptive(start=8, full=100, tolerance=2.0, multiples_per_validation=3)
    first = schedule.after_validation(None, 10.0, 5)
    assert first == adapted(length=32, best_perplexity=10.0, validated_step=5)
    assert schedule.after_validation(first, 20.0, 6).length == 56
    assert schedule.after_validation(first, 20.1, 6) == replace(first, validated_step=6)
    assert schedule.after_validation(replace(first, length=90), 1.0, 6).length == 100
    assert schedule.after_validation(replace(first, length=30), 1.0, 6).length == 48  # a multiple again


def test_a_saved_length_is_kept_within_the_schedules_bounds() -> None:
    for saved, used in ((4, 8), (8, 8), (24, 24), (32, 32), (64, 32)):
        assert ADAPT.seqlen(105, adapted(length=saved, anchor_step=100)) == used
    assert ADAPT.seqlen(100, adapted(length=24, anchor_step=100)) == 8  # not yet
    assert ADAPT.seqlen(101, adapted(length=24, anchor_step=100)) == 24
    assert ADAPT.seqlen(105) == 8
    assert ADAPT.begin() == adapted(length=8, validated_step=100, anchor_step=100)
    assert Adaptive(start=9, full=9).foreseen(500) == 9
    assert ADAPT.foreseen(90) == 8


def test_a_function_of_the_users_is_asked_for_the_steps_since_the_anchor() -> None:
    asked: list[int] = []
    named = Custom(start=8, full=20, function="a:b", anchor_step=10)
    found = named.resolved_by(lambda _: lambda t: asked.append(t) or t)
    assert [found.seqlen(step) for step in (5, 10, 12, 27, 29, 30, 99)] == [8, 8, 8, 16, 16, 20, 20]
    assert asked == [0, 0, 2, 17, 19, 20, 89]
    assert (found.foreseen(12), named.foreseen(12)) == (8, None)
    odd: Any = lambda _: True  # noqa: E731
    with pytest.raises(ConfigError, match="a whole number of tokens, not True"):
        named.resolved_by(lambda _: odd).seqlen(1)


# LR


@pytest.mark.parametrize("unit", ["steps", "samples", "tokens"])
@pytest.mark.parametrize("decay_unit", ["steps", "samples", "tokens"])
def test_an_lr_warms_up_and_decays_each_in_its_own_unit(unit: str, decay_unit: str) -> None:
    schedule = LrSchedule(
        peak=2.0, warmup=10, decay_start=20, decay_end=40, minimum=0.5, anchor=100, unit=unit, decay_unit=decay_unit
    )

    def at(warming: int, decaying: int) -> float:
        counts = {"steps": 7, "samples": 7, "tokens": 7} | {decay_unit: decaying}
        counts[unit] = warming if unit != decay_unit else decaying
        return schedule.lr(step=counts["steps"], consumed_samples=counts["samples"], consumed_tokens=counts["tokens"])

    if unit == decay_unit:
        assert at(0, 110) == pytest.approx(0.5)  # long decayed
        return
    assert [at(warming, 0) for warming in (50, 100, 101, 105, 110, 500)] == pytest.approx([0, 0, 0.2, 1.0, 2.0, 2.0])
    assert [at(500, n) for n in (19, 20, 25, 30, 40, 99)] == pytest.approx([2, 2, 1.7803, 1.25, 0.5, 0.5], rel=1e-4)


@pytest.mark.parametrize("decay_end", [10, 5])
def test_a_decay_that_ends_where_it_begins_is_a_drop_after_the_warmup(decay_end: int) -> None:
    schedule = LrSchedule(peak=1.0, warmup=10, decay_start=10, decay_end=decay_end, minimum=0.25)
    assert [schedule.lr(step=step) for step in (5, 10, 11, 12)] == pytest.approx([0.5, 1.0, 0.25, 0.25])
    one_step = replace(schedule, decay_end=11)
    assert [one_step.lr(step=step) for step in (10, 11)] == pytest.approx([1.0, 0.25])


def test_an_lr_without_a_decay_stays_and_one_of_nothing_is_nothing() -> None:
    assert LrSchedule(peak=1.0, warmup=0, decay_end=0).lr(step=10**6) == 1.0
    assert LrSchedule(peak=1.0, warmup=0, decay_end=10).lr(step=0) == 1.0
    assert LrSchedule(peak=0.0, warmup=2, decay_end=10).lr(step=5) == 0.0


REPEATED = LrSchedule(peak=1.0, warmup=300, decay_start=50, decay_end=600, anchor=200)
"""A warmup that is repeated within the decay: the largest LR lies in its middle."""


def test_the_largest_lr_of_a_stretch_is_that_of_its_steps() -> None:
    top = max(range(200, 600), key=lambda step: REPEATED.lr(step=step))
    assert 205 < top < 495
    for by in (0, 20_000):
        moved = replace(REPEATED, anchor=200 + by, decay_start=50 + by, decay_end=600 + by)
        for first, last in ((201, top - 1), (201, top), (201, top + 1), (202, top + 1), (top, top), (top + 1, 599)):
            steps = range(first + by, last + by + 1)
            largest = max(moved.lr(step=step) for step in steps)
            assert moved.largest(first + by, last + by) == (
                largest,
                next(step for step in steps if moved.lr(step=step) == largest),
            )


def test_a_stretch_without_steps_or_an_lr_that_goes_by_tokens_has_no_largest() -> None:
    assert REPEATED.largest(300, 299) is None
    assert replace(REPEATED, unit="tokens").largest(1, 500) is None
    assert replace(REPEATED, decay_unit="tokens").largest(1, 500) is None
    assert replace(REPEATED, decay_unit="steps").largest(1, 500) == REPEATED.largest(1, 500)
    long = LrSchedule(peak=1.0, warmup=54_321, decay_start=54_321, decay_end=200_000)
    assert long.largest(1, 100_000) == (1.0, 54_321)
    assert long.largest(60_000, 100_000) == (long.lr(step=60_000), 60_000)
    assert long.largest(1, 20_001) == (long.lr(step=20_001), 20_001)


# The papers' recipes


def test_a_recipe_is_the_papers_shares_of_the_runs_steps() -> None:
    full = 286_102
    assert gpt_seqlen(full_steps=full, anchor_step=7) == FixedLinear(
        start=80, full=2048, total_steps=110_000, anchor_step=7
    )
    rarity = DifficultySchedule(kind="percentile", start=1, full=100, total_steps=110_000, root_degree=2.0)
    assert gpt_rarity(full_steps=full) == rarity
    assert gpt_rarity(full_steps=full, anchor_step=7) == rarity.anchored_at(7)
    assert gpt_random_ltd(full_steps=full) == RandomLtdSchedule(start=128, full=2048, total_steps=200_000)
    assert gpt_random_ltd(full_steps=full, full_seqlen=64, anchor_step=7).start == 64
    for recipe in (gpt_seqlen, gpt_rarity, gpt_random_ltd):
        assert recipe(full_steps=1).total_steps == 1
        assert recipe(full_steps=10_000).anchor_step == 0
        assert recipe(full_steps=10_000, data_share=1.0) == recipe(full_steps=10_000)
        assert recipe(full_steps=10_000, data_share=0.5).total_steps == recipe(full_steps=5000).total_steps
        with pytest.raises(ConfigError, match="at least one step"):
            recipe(full_steps=0)
        with pytest.raises(ConfigError, match="data share"):
            recipe(full_steps=10, data_share=2)
    assert gpt_seqlen(full_steps=full, data_share=2 / 3).total_steps == 73_333
    assert gpt_seqlen(full_steps=100, full_seqlen=64).warms_up is False


def test_a_recipes_lr_is_scaled_to_its_share_of_the_data() -> None:
    whole = LrSchedule(peak=2e-4, warmup=30, decay_start=30, decay_end=1000, minimum=1e-6, unit="tokens")
    assert lr(peak=2e-4, full_tokens=1000, warmup_tokens=30) == whole
    half = lr(peak=2e-4, full_tokens=1000, warmup_tokens=30, data_share=0.5)
    assert half == replace(whole, peak=4e-4, decay_end=500)
    assert lr(peak=1e-7, full_tokens=1000, warmup_tokens=30).minimum == 1e-7


# What switching SLW on changes


RUN = SlwRun(full_seqlen=64, batch=BatchSizeSchedule(start=4, full=4, increment=1, ramp_samples=0))
STEADY = FixedLinear(start=16, full=64, total_steps=10**6, multiple=16)
"""16 tokens a sample for very long: four steps see what one step of the full length does."""


@pytest.mark.parametrize(
    ("ends", "tokens"),
    [
        ({}, None),
        ({"total_steps": 100}, 100 * 4 * 64),
        ({"total_samples": 300}, 300 * 64),
        ({"total_tokens": 9999}, 9999),
        ({"total_steps": 100, "total_samples": 300, "total_tokens": 99_999}, 300 * 64),
        ({"total_steps": 100, "total_samples": 401, "total_tokens": 99_999}, 100 * 4 * 64),
        ({"total_steps": 100, "total_samples": 300, "total_tokens": 99}, 99),
    ],
)
def test_a_run_under_slw_ends_by_the_tokens_of_the_first_of_its_ends(ends: dict[str, int], tokens: int | None) -> None:
    assert slw_changes(replace(RUN, **ends), STEADY).total_tokens == tokens
    kept = slw_changes(replace(RUN, **ends), STEADY, shorten="reshape_keep")
    assert (kept.total_tokens, kept.seqlen, kept.batch.warms_up) == (ends.get("total_tokens"), STEADY, False)


@pytest.mark.parametrize(
    ("unit", "warmup", "position", "tokens"),
    [
        ("steps", 10, Position(), 10 * 4 * 64),
        ("steps", 10, Position(step=9, samples=36, tokens=9000), 9000 + 4 * 64),
        ("steps", 10, Position(step=10, samples=40, tokens=9000), None),
        ("steps", 0, Position(), None),
        ("samples", 10, Position(), 10 * 64),
        ("samples", 10, Position(step=2, samples=9, tokens=100), 100 + 64),
        ("samples", 10, Position(step=2, samples=10, tokens=100), None),
        ("tokens", 10, Position(step=2, samples=8, tokens=9), 10),
        ("tokens", 10, Position(step=2, samples=8, tokens=10), None),
    ],
)
def test_an_lr_warmup_that_is_not_over_takes_so_many_tokens(
    unit: str, warmup: int, position: Position, tokens: int | None
) -> None:
    run = replace(RUN, at=position, lr=LrSchedule(peak=1.0, warmup=warmup, decay_end=0, unit=unit))
    assert warmup_tokens(run) == tokens
    assert warmup_tokens(replace(run, lr=None)) is None
    if tokens is None:
        assert slw_changes(run, STEADY).lr == run.lr


@pytest.mark.parametrize(
    ("lr", "counts", "changed"),
    [
        ({"unit": "steps", "warmup": 10}, None, {"warmup": 40}),
        ({"unit": "steps", "warmup": 10, "anchor": 4}, None, {"warmup": 52}),  # (4 + 10) x 4 steps, less the anchor
        ({"unit": "samples", "warmup": 40}, None, {"warmup": 160}),
        ({"unit": "tokens", "warmup": 2560}, None, {}),
        ({"unit": "tokens", "warmup": 2560}, "samples", {"unit": "samples", "warmup": 160, "decay_unit": "tokens"}),
        ({"unit": "tokens", "warmup": 2560}, "steps", {"unit": "steps", "warmup": 40, "decay_unit": "tokens"}),
        (
            {"unit": "steps", "warmup": 10, "decay_start": 10, "decay_end": 100},
            None,
            {"warmup": 40, "decay_unit": "tokens", "decay_start": 2560, "decay_end": 25_600},
        ),
        (
            {"unit": "samples", "warmup": 40, "decay_start": 40, "decay_end": 400},
            None,
            {"warmup": 160, "decay_unit": "tokens", "decay_start": 2560, "decay_end": 25_600},
        ),
        (
            {"unit": "steps", "warmup": 10, "decay_start": 40, "decay_end": 400, "decay_unit": "samples"},
            None,
            {"warmup": 40, "decay_unit": "tokens", "decay_start": 2560, "decay_end": 25_600},
        ),
        (
            {"unit": "steps", "warmup": 10, "decay_start": 2560, "decay_end": 25_600, "decay_unit": "tokens"},
            None,
            {"warmup": 40},
        ),
    ],
)
def test_the_lr_of_a_run_under_slw_warms_up_over_the_same_tokens_and_decays_by_them(
    lr: dict[str, Any], counts: Literal["steps", "samples"] | None, changed: dict[str, Any]
) -> None:
    run = replace(RUN, lr=LrSchedule(**({"peak": 1.0, "decay_end": 0} | lr)), counts=counts)
    assert run.lr is not None
    assert slw_changes(run, STEADY).lr == replace(run.lr, **changed)
    assert slw_changes(run, STEADY, shorten="reshape").lr == run.lr


# Where steps lead


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        (("steps", 0), Position(step=2, samples=8, tokens=512)),
        (("steps", 2), Position(step=2, samples=8, tokens=512)),
        (("steps", 1), Position(step=2, samples=8, tokens=512)),
        (("steps", 3), Position(step=3, samples=12, tokens=768)),
        (("samples", 8), Position(step=2, samples=8, tokens=512)),
        (("samples", 9), Position(step=3, samples=12, tokens=768)),
        (("tokens", 512), Position(step=2, samples=8, tokens=512)),
        (("tokens", 513), Position(step=3, samples=12, tokens=768)),
        (("tokens", 10**6), Position(step=3907, samples=15628, tokens=1_000_192)),
    ],
)
def test_a_limit_is_reached_with_the_first_whole_step(limit: tuple[str, int], found: Position) -> None:
    assert RUN.track.reach(Position(step=2, samples=8, tokens=512), *limit) == found


def test_tokens_at_a_sample_within_a_step_are_counted_to_that_sample() -> None:
    track = replace(RUN.track, seqlen=FixedLinear(start=16, full=64, total_steps=3, multiple=16))
    assert [track.tokens_at(Position(), "samples", n) for n in (0, 1, 4, 5, 8, 9, 12, 13)] == [
        *(0, 32, 128, 176, 320, 384, 576, 640),
    ]
    assert track.tokens_at(Position(step=5, samples=20, tokens=7), "samples", 20) == 7


@pytest.mark.parametrize(
    ("layers", "dropping", "kept"),
    [(4, None, 2), (1, None, 1), (2, None, 2), (4, (0, 1, 2), 1), (3, (1,), 2), (3, (), 3)],
)
def test_layers_that_drop_see_fewer_tokens(layers: int, dropping: tuple[int, ...] | None, kept: int) -> None:
    """By default all but the first and the last one drop."""
    ltd = RandomLtdSchedule(start=16, full=64, total_steps=10**6, layers=dropping)
    seen = replace(RUN.track, random_ltd=ltd, layers=layers).reach(Position(), "steps", 1).tokens
    assert seen == 4 * (kept * 64 + (layers - kept) * 16) // layers


def test_a_reshape_trains_on_all_whole_pieces_of_a_sample() -> None:
    assert [trained_tokens(24, full=64, shorten=how) for how in ("reshape", "reshape_keep")] == [48, 48]
    assert [trained_tokens(24, full=64, shorten=how) for how in ("truncate", "truncate_keep", None)] == [24] * 3


def test_a_schedule_that_never_stays_as_it_is_is_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert track_module._MOST_STEPS == 5_000_000
    monkeypatch.setattr(track_module, "_MOST_STEPS", 20)
    track = replace(RUN.track, seqlen=Mixed(start=16, full=64, short_steps=3, full_steps=1))
    assert track.reach(Position(), "steps", 20).tokens == 5 * 4 * (3 * 16 + 64)
    with pytest.raises(ConfigError, match="still changes after 20 steps"):
        track.reach(Position(), "steps", 21)
