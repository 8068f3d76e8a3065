"""A curriculum's samples: easy enough, each once before any comes again, and the same after any restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.vocabulary.errors import DataError
from sentinel.vocabulary.training_settings import SkippedRange
from tests.hooks.data_made import index_of
from trainer_hooks.data import CurriculumOrder, CurriculumSampler, Pace
from trainer_hooks.data.permutation import Permutation, key
from trainer_hooks.data.pool import Progress

STEPS = 30


class Curriculum:
    """One metric or two over made-up values, growing over about STEPS steps, by leaps or a little at a time."""

    def __init__(self, samples: int, metrics: int, seed: int, every: int) -> None:
        draws = np.random.default_rng(seed)
        self.samples = samples
        self.values = [draws.integers(0, 40, samples).astype(np.float32) for _ in range(metrics)]
        self.every = every
        kinds = ("value", "percentile")
        self.paces = [
            Pace(index=index_of(values, f"metric{n}"), difficulty=self.limit(kind), kind=kind)
            for n, (values, kind) in enumerate(zip(self.values, (kinds * 2)[seed % 2 :], strict=False))
        ]

    def limit(self, kind: str) -> Any:
        def at(step: int) -> float:
            share = min(step // self.every * self.every / STEPS, 1.0)
            return 4 + 36 * share if kind == "value" else 30 + 70 * share

        return at

    def pool(self, step: int) -> set[int]:
        """By the definition."""
        held = set(range(self.samples))
        for pace, values in zip(self.paces, self.values, strict=True):
            limit = pace.difficulty(step)
            if pace.kind == "value":
                held &= set(np.flatnonzero(values <= limit).tolist())
            else:
                order = np.argsort(values, kind="stable")
                held &= set(order[: max(1, int(self.samples * limit / 100))].tolist())
        return held


CURRICULA = st.builds(
    Curriculum,
    st.integers(60, 400),
    st.integers(1, 2),
    st.integers(0, 50),
    st.sampled_from([1, 3, 10]),
).filter(lambda c: bool(c.pool(1)))
BATCHES = st.integers(1, 40)


def run(order: CurriculumOrder, position: int, steps: int, batch: int) -> tuple[list[list[int]], int]:
    seen = []
    for _ in range(steps):
        taken, position = order.take(position, batch)
        seen.append(taken.tolist())
    return seen, position


@given(st.integers(1, 5000), st.integers(0, 99))
def test_a_computed_permutation_is_one(size: int, seed: int) -> None:
    assert sorted(Permutation(size, key(seed))(np.arange(size))) == list(range(size))


def test_every_order_of_a_few_comes_up_about_as_often() -> None:
    orders = Counter(tuple(Permutation(4, key(seed))(np.arange(4)).tolist()) for seed in range(12_000))
    assert len(orders) == 24
    assert max(orders.values()) < 1.5 * min(orders.values()) + 100


@pytest.mark.full
@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 9), st.integers(1, STEPS))
def test_a_resume_at_any_step_sees_what_the_run_without_one_sees(
    curriculum: Curriculum, batch: int, seed: int, at: int
) -> None:
    order = CurriculumOrder(curriculum.paces, seed, batch=batch)
    before, position = run(order, 0, at, batch)
    saved = json.loads(json.dumps(order.state()))
    after, _ = run(order, position, STEPS, batch)
    again = CurriculumOrder(curriculum.paces, 99, batch=batch, reseeds=order.reseeds, state=saved)
    assert again.step == at
    assert run(again, position, STEPS, batch)[0] == after
    assert run(CurriculumOrder(curriculum.paces, seed, batch=batch), 0, at, batch)[0] == before


@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 9))
def test_no_sample_is_too_difficult_and_all_of_the_pool_comes_before_any_comes_again(
    curriculum: Curriculum, batch: int, seed: int
) -> None:
    sampler = CurriculumSampler(curriculum.paces, [(0, seed)])
    passes: dict[int, list[int]] = {}
    for step in range(1, 2 * STEPS):
        pool, wanted = curriculum.pool(step), batch
        while wanted:
            number, drawn = sampler.draw_raw(step, wanted)
            if number not in passes and passes:
                assert set(passes[number - 1]) == pool  # the last pass ended because nothing of the pool was left
            passes.setdefault(number, []).extend(drawn.tolist())
            wanted -= len(drawn)
            assert set(drawn.tolist()) <= pool
    assert all(len(seen) == len(set(seen)) for seen in passes.values())
    assert list(passes) == list(range(1, len(passes) + 1))


@settings(deadline=None)
@given(CURRICULA, st.integers(0, 9), st.integers(1, 6), st.integers(0, STEPS))
def test_any_number_of_ranks_draws_the_same_batch(curriculum: Curriculum, seed: int, micro: int, steps: int) -> None:
    batch = 4 * micro
    states = {}
    for world in (1, 2, 4):
        ranks = [CurriculumOrder(curriculum.paces, seed, batch=batch) for _ in range(world)]
        whole, position = [], 0
        for _ in range(steps):
            taken = [order.take(position, batch) for order in ranks]
            position = taken[0][1]
            shares = [t[0].reshape(-1, world, micro)[:, rank] for rank, t in enumerate(taken)]
            whole.append(np.stack(shares, axis=1).reshape(-1).tolist())
        states[world] = whole
    assert states[1] == states[2] == states[4]


def test_new_samples_are_drawn_with_the_rest_in_proportion() -> None:
    limits = {1: 10.0, 2: 30.0}
    values = np.repeat([5.0, 20.0], [8000, 8000]).astype(np.float32)
    pace = Pace(index=index_of(values), difficulty=lambda step: limits[min(step, 2)], kind="value")
    order = CurriculumOrder([pace], 3, batch=1000)
    first, position = order.take(0, 4000)
    second, _ = order.take(position, 1200)
    assert (first < 8000).all()
    assert np.count_nonzero(second < 8000) == pytest.approx(400, abs=1)  # 4000 old ones are left beside 8000 new ones
    halves = [np.count_nonzero(half < 8000) for half in (second[:600], second[600:])]
    assert min(halves) > 130  # old and new ones are mixed within the batch


def test_seeds_make_different_orders_and_passes_too() -> None:
    pace = Pace(index=index_of(np.arange(500.0)), difficulty=lambda _: 100, kind="percentile")
    one, two = (CurriculumOrder([pace], seed, batch=500) for seed in (1, 2))
    first, position = one.take(0, 500)
    assert sorted(first.tolist()) == sorted(one.take(position, 500)[0].tolist()) == list(range(500))
    assert first.tolist() != one.take(position, 500)[0].tolist()
    assert first.tolist() != two.take(0, 500)[0].tolist()


@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 9), st.integers(1, 20))
def test_a_position_gives_the_same_samples_however_often_it_is_asked_for(
    curriculum: Curriculum, batch: int, seed: int, steps: int
) -> None:
    order = CurriculumOrder(curriculum.paces, seed, batch=batch)
    whole, position = run(order, 0, steps, batch)
    last = position - batch
    assert order.take(last, batch)[0].tolist() == whole[-1]
    assert order.indices(0, batch).tolist() == whole[0]
    assert order.take(0, batch)[0].tolist() == whole[0]
    assert order.take(last, batch)[0].tolist() == whole[-1]
    assert order.first(last) == last


@pytest.mark.full
@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 9), st.integers(0, 20))
def test_a_reseed_changes_what_is_to_come_and_nothing_else(
    curriculum: Curriculum, batch: int, seed: int, at: int
) -> None:
    order = CurriculumOrder(curriculum.paces, seed, batch=batch)
    before, position = run(order, 0, at, batch)
    saved = json.loads(json.dumps(order.state()))
    order.reseed(position, seed + 100)
    assert order.seed == seed + 100
    after, end = run(order, position, STEPS, batch)
    assert run(order, 0, at, batch)[0] == before
    assert run(order, position, STEPS, batch)[0] == after
    again = CurriculumOrder(curriculum.paces, seed, batch=batch, reseeds=order.reseeds, state=saved)
    assert run(again, position, STEPS, batch)[0] == after  # a requeue from the checkpoint that the reseed was made at
    later = CurriculumOrder(
        curriculum.paces, seed, batch=batch, reseeds=order.reseeds, state=json.loads(json.dumps(order.state()))
    )
    assert run(later, end, 5, batch) == run(order, end, 5, batch)


def test_a_reseed_permutes_only_what_is_left_of_the_pass() -> None:
    pace = Pace(index=index_of(np.arange(300.0)), difficulty=lambda _: 100, kind="percentile")
    order, other = (CurriculumOrder([pace], 1, batch=100) for _ in range(2))
    first, position = order.take(0, 100)
    order.reseed(position, 2)
    order.reseed(position + 50, 3)
    rest, end = order.take(position, 200)
    untouched = other.take(other.take(0, 100)[1], 200)[0]
    assert set(rest.tolist()) == set(untouched.tolist()) == set(range(300)) - set(first.tolist())
    assert rest.tolist() != untouched.tolist()
    assert rest[:50].tolist() != untouched[:50].tolist()
    assert sorted(order.take(end, 300)[0].tolist()) == list(range(300))
    with pytest.raises(DataError, match="consumed"):
        order.reseed(20, 9)


@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 9), st.integers(0, 15), st.integers(1, 6))
def test_what_is_skipped_is_what_the_next_step_would_have_gone_on_to_take(
    curriculum: Curriculum, batch: int, seed: int, at: int, steps: int
) -> None:
    order, whole = (CurriculumOrder(curriculum.paces, seed, batch=batch) for _ in range(2))
    _, position = run(order, 0, at, batch)
    sampler = CurriculumSampler(curriculum.paces, [(0, seed)])
    taken: Counter[tuple[int, int]] = Counter()
    for step in range(1, at + steps + 1):
        wanted = batch
        while wanted:
            number, drawn = sampler.draw_raw(min(step, at + 1), wanted)
            wanted -= len(drawn)
            if step > at:
                taken.update((number, sample) for sample in drawn.tolist())
    order.skip(position, steps * batch)
    assert order.skipped_samples == len(taken) == steps * batch
    assert order.first(position) == position + steps * batch
    assert order.take(position, batch)[1] == position + (steps + 1) * batch
    trial = order._at(position)
    for step in range(at + 1, at + 2 * STEPS):
        wanted = batch
        while wanted:
            number, drawn = trial.draw_raw(step, wanted)
            kept = [s for s in drawn.tolist() if s not in trial.left_out.get(number, ())]
            assert not any((number, sample) in taken for sample in kept)
            wanted -= len(drawn)
    assert run(whole, 0, at, batch)[1] == position


def test_a_skip_travels_with_the_checkpoint_and_survives_a_rollback_to_before_it() -> None:
    pace = Pace(index=index_of(np.arange(400.0)), difficulty=lambda step: 20 + step, kind="percentile")
    order = CurriculumOrder([pace], 5, batch=10)
    early = (json.loads(json.dumps(order.state())), 0)
    _, position = run(order, 0, 3, 10)
    trial = CurriculumOrder([pace], 5, batch=10, state=order.state())
    culprits = [trial.take(at, 10, 4)[0].tolist() for at in (30, 40)]
    order.skip(position, 20)
    (part,) = order.skipped
    assert part == SkippedRange(begin=30, end=50, reseeds=((0, 5),))
    assert order.first(position) == 50
    after, end = run(order, position, 4, 10)
    assert not {s for batch in culprits for s in batch} & {s for batch in after for s in batch}
    requeued = CurriculumOrder([pace], 5, batch=10, skipped=order.skipped, state=json.loads(json.dumps(order.state())))
    assert run(requeued, end, 6, 10) == run(order, end, 6, 10)
    assert requeued.skipped == order.skipped

    rolled_back = CurriculumOrder([pace], 5, batch=10, skipped=[part], state=early[0])
    rolled_back.reseed(0, 6)
    seen, _ = run(rolled_back, 0, 9, 10)
    assert rolled_back.skipped_samples == 20
    assert not {s for batch in culprits for s in batch} & {s for batch in seen for s in batch}
    assert rolled_back.skipped == (part,)


@settings(deadline=None)
@given(CURRICULA, BATCHES, st.integers(0, 500), st.integers(0, STEPS))
def test_a_curriculum_begins_anywhere_in_a_run(curriculum: Curriculum, batch: int, position: int, step: int) -> None:
    order = CurriculumOrder(curriculum.paces, 1, batch=batch, position=position, step=step)
    taken, after = order.take(position, batch)
    assert after == position + batch
    assert order.step == step + 1
    assert set(taken.tolist()) <= curriculum.pool(step + 1)
    with pytest.raises(DataError, match="before this order begins"):
        order.take(position - 1, batch)


def test_a_difficulty_that_comes_down_ends_the_pass() -> None:
    pace = Pace(index=index_of(np.arange(100.0)), difficulty=lambda step: 10 if step % 2 else 90, kind="percentile")
    order, position = CurriculumOrder([pace], 1, batch=5), 0
    for step in range(1, 9):
        taken, position = order.take(position, 5)
        assert (taken < (10 if step % 2 else 90)).all()


def test_a_pool_that_grows_a_little_at_every_step_leaves_a_small_state() -> None:
    pace = Pace(
        index=index_of(np.random.default_rng(0).random(200_000)), difficulty=lambda t: 1 + t / 50, kind="percentile"
    )
    order, position = CurriculumOrder([pace], 1, batch=8), 0
    for step in range(1, 4951):
        _, position = order.take(position, 8, step)
    held = order._now
    assert len(held.progress.segments) < 600
    assert held._up_to[-1] == (200_000,)
    assert all(pace.let_in(step) * 127 < 128 * 200_000 for step in (1, 4950))


def test_a_pool_without_a_sample_is_said() -> None:
    pace = Pace(index=index_of(np.arange(5.0) + 600), difficulty=lambda _: 80, kind="value")
    with pytest.raises(DataError, match="no sample is easy enough for step 1: voc lets in 0 of 5"):
        CurriculumOrder([pace], 1, batch=2).take(0, 2)


def test_a_state_of_other_indexes_is_refused() -> None:
    def order(samples: int, **more: Any) -> CurriculumOrder:
        pace = Pace(index=index_of(np.arange(float(samples))), difficulty=lambda _: 100, kind="percentile")
        return CurriculumOrder([pace], 1, batch=2, **more)

    whole = order(50)
    whole.take(0, 2)
    with pytest.raises(DataError, match="more samples"):
        order(40, state=whole.state())
    with pytest.raises(DataError, match="has no 'at'"):
        order(50, state={})
    with pytest.raises(DataError, match="can't be read"):
        Progress.from_json({"position": "x"})
    paces = [Pace(index=index_of(np.arange(n), f"of{n}"), difficulty=lambda _: 1, kind="value") for n in (3, 4)]
    with pytest.raises(DataError, match="not of the same samples"):
        CurriculumSampler(paces, [(0, 1)])
