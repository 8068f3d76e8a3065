"""What is cut off is trained on later: every target of every sample exactly once, whatever happens to the run."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from sentinel.vocabulary.pacing import FixedLinear
from tests.hooks.shortened_run import Lengths, ShortenedRun
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.seqlen_warmup import Kept, Run, Segment, SeqlenWarmup
from trainer_hooks.warmup.kept import packed
from trainer_hooks.warmup.shortening import levelling

RANKS = st.sampled_from([1, 2, 4])
EVENTS = st.one_of(
    st.tuples(st.just("steps"), st.integers(1, 12)),
    st.tuples(st.just("requeue"), RANKS),
    st.tuples(
        st.just("rollback"), RANKS, st.integers(0, 9), st.booleans(), st.none() | st.integers(1, 5), st.booleans()
    ),
    st.tuples(st.just("skip"), st.integers(1, 9)),
)


def drive(run: ShortenedRun, events: list[tuple[Any, ...]]) -> None:
    saves = [run.checkpoint()]
    for what, *how in events:
        if what == "steps":
            for _ in range(how[0]):
                run.make_step()
                if run.step % 3 == 0:
                    saves.append(run.checkpoint())
        elif what == "requeue":
            run.resume(run.checkpoint(), ranks=how[0])
        elif what == "rollback":
            ranks, back, anchor, seed, skips_stay = how
            skipped = run.order.skipped if skips_stay else ()
            saves = saves[: max(1, len(saves) - back)]
            run.resume(saves[-1], ranks=ranks, anchor=anchor, seed=seed, skipped=skipped)
        else:
            run.order.skip(run.consumed, how[0])
        assert run.trained + run.kept == run.begun
        assert run.warmup.consumed_tokens == run.trained.total()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([6, 8, 15, 24]).flatmap(
        lambda full: st.tuples(st.just(full), st.lists(st.integers(1, full), min_size=1, max_size=12))
    ),
    st.sampled_from(["truncate_keep", "reshape_keep"]),
    st.integers(5, 50),
    st.sampled_from([4, 8, 12]),
    st.integers(1, 5),
    st.lists(EVENTS, max_size=14),
)
def test_every_target_of_every_sample_is_trained_on_once_or_waits(
    lengths: tuple[int, list[int]], shorten: str, samples: int, batch: int, every: int, events: list[tuple[Any, ...]]
) -> None:
    run = ShortenedRun(lengths[1], shorten, lengths[0], samples, batch, every)
    drive(run, events)
    assert run.warmup.dropped_tokens == 0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([6, 8, 15, 24]).flatmap(
        lambda full: st.tuples(st.just(full), st.lists(st.integers(1, full), min_size=1, max_size=12))
    ),
    st.integers(5, 50),
    st.sampled_from([4, 8, 12]),
    st.integers(1, 5),
    st.lists(EVENTS, max_size=9),
)
def test_a_while_after_the_warmup_nothing_waits_any_more(
    lengths: tuple[int, list[int]], samples: int, batch: int, every: int, events: list[tuple[Any, ...]]
) -> None:
    run = ShortenedRun(lengths[1], "truncate_keep", lengths[0], samples, batch, every)
    drive(run, events)
    while run.step < run.anchor + len(lengths[1]):
        run.make_step()
    levelled = int(run.warmup.kept.tokens % run.full > 0)
    whole = -(-(run.warmup.kept.tokens + levelled * batch * run.full) // run.full)
    for _ in range(levelled + -(-whole // max(1, batch // every))):
        run.make_step()
    assert run.warmup.kept.tokens == 0
    assert run.trained == run.begun


def test_the_same_data_is_trained_on_with_any_number_of_ranks() -> None:
    runs = []
    for ranks in (1, 2, 4):
        run = ShortenedRun([3, 8, 8, 16], "truncate_keep", 24, 40, 8, 2, ranks=ranks)
        for _ in range(12):
            run.make_step()
        runs.append((run.trained, run.warmup.state()))
    assert runs[0] == runs[1] == runs[2]


def test_a_whole_warmup_is_a_few_numbers() -> None:
    schedule = FixedLinear(start=64, full=1024, total_steps=3000)
    warmup = SeqlenWarmup(schedule, "truncate_keep", global_batch_samples=512)
    for step in range(1, 3000):
        warmup.begin(step)
        warmup.took([(512 * (step - 1), 512 * step)])
    assert len(warmup.kept.runs) == 120  # one for each length from 64 to 1016
    assert warmup.kept.tokens + warmup.consumed_tokens == 2999 * 512 * 1024
    assert len(json.dumps(warmup.state())) < 5000


def test_of_each_batch_a_share_is_packed_until_nothing_waits() -> None:
    warmup = SeqlenWarmup(Lengths([16, 16], 32), "truncate_keep", global_batch_samples=8, kept_every=4)
    seen = []
    for step in range(1, 9):
        length = warmup.begin(step)
        warmup.took([(8 * step, 8 * step + 8)])
        seen.append((length, warmup.kept_samples, warmup.kept.tokens))
    kept = [(32, 2, 192), (32, 2, 128), (32, 2, 64), (32, 2, 0), (32, 0, 0), (32, 0, 0)]
    assert seen == [(16, 0, 128), (16, 0, 256), *kept]


def test_a_length_that_leaves_a_part_of_a_sample_is_levelled_by_one_step() -> None:
    warmup = SeqlenWarmup(Lengths([5], 24), "truncate_keep", global_batch_samples=8, kept_every=8)
    assert warmup.begin(1) == 5
    warmup.took([(0, 8)])
    assert warmup.kept.tokens == 8 * 19
    assert warmup.begin(2) == 22  # 8 * 19 + 8 * 2 is 7 * 24
    warmup.took([(8, 16)])
    assert warmup.begin(3) == 24
    assert (warmup.kept_samples, warmup.kept.tokens) == (1, 6 * 24)
    as_it_is = SeqlenWarmup(Lengths([5], 24), "truncate_keep", global_batch_samples=8, level=False)
    as_it_is.begin(1)
    as_it_is.took([(0, 8)])
    assert [as_it_is.begin(step) for step in range(2, 9)] == [24] * 7
    assert as_it_is.kept.tokens == 8 * 19 % 24


@given(st.integers(1, 300), st.integers(2, 300), st.integers(0, 300))
def test_levelling_cuts_little_and_makes_whole_samples(batch: int, full: int, steps_cut: int) -> None:
    shared = math.gcd(batch, full)
    waiting = batch * steps_cut
    assume(waiting % full)
    length = levelling(waiting, batch, full, "truncate")
    assert (waiting + batch * (full - length)) % full == 0
    assert full - full // shared < length < full
    if shared > 1:  # what was cut of batches of another size
        assert levelling(waiting + 1, batch, full, "truncate") == full


def test_a_packed_row_is_its_targets_behind_the_token_before_them() -> None:
    rows = torch.arange(100).view(10, 10)
    segments = [Segment(2, 4, 9), Segment(7, 0, 3)]
    assert packed(segments, lambda at: rows[at]).tolist() == [24, 25, 26, 27, 28, 29, 71, 72, 73]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=9
    ),
    st.lists(st.integers(0, 30), max_size=12),
    st.data(),
)
def test_the_queue_gives_each_target_once_in_order_and_survives_json(
    runs: list[tuple[int, int, int, int]], takes: list[int], data: st.DataObject
) -> None:
    kept, waiting, given_out, before = Kept(), [], [], []
    for first, count, begin, width in runs:
        kept.add(Run(first, first + count, begin, begin + width))
        before += [(p, t) for p in range(first, first + count) for t in range(begin, begin + width)]
    for wanted in takes:
        take = min(wanted, kept.tokens)
        taken = kept.take(take)
        cut = data.draw(st.integers(0, take))
        for begin, end in ((0, cut), (cut, take)):
            for segment in taken.segments(begin, end):
                given_out += [(segment.position, t) for t in range(segment.begin, segment.end)]
        kept = Kept.of(json.loads(json.dumps(kept.state())))
    rest = kept.take(kept.tokens)
    waiting = [(s.position, t) for s in rest.segments(0, 10**6) for t in range(s.begin, s.end)]
    assert given_out + waiting == before


@given(
    st.integers(2, 30),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=3),
    st.integers(0, 60),
    st.integers(0, 40),
)
def test_runs_of_the_data_order_are_the_positions_of_what_it_gives(
    samples: int, skips: list[tuple[int, int]], position: int, count: int
) -> None:
    order = DataOrder(samples, 3)
    for at, skipped in skips:
        order.skip(at, min(skipped, samples - 1))
    taken, after = order.take(position, count)
    positions = [p for first, end in order.runs(position, after) for p in range(first, end)]
    assert order.at(positions).tolist() == taken.tolist()


def test_a_step_that_was_not_told_what_it_cut_stops_the_next_one_and_the_checkpoint() -> None:
    warmup = SeqlenWarmup(Lengths([8], 32), "truncate_keep", global_batch_samples=8)
    warmup.begin(1)
    with pytest.raises(ConfigError, match=r"was given 7"):
        warmup.took([(0, 7)])
    with pytest.raises(ConfigError, match=r"took"):
        warmup.state()
    with pytest.raises(ConfigError, match=r"took"):
        warmup.begin(2)


def test_tokens_kept_of_other_samples_are_refused() -> None:
    warmup = SeqlenWarmup(Lengths([8], 32), "truncate_keep", global_batch_samples=8)
    warmup.begin(1)
    warmup.took([(0, 8)])
    with pytest.raises(CheckpointError, match="of samples of 32: they are none of 64"):
        SeqlenWarmup(Lengths([8], 64), "truncate_keep").load(warmup.state())


@pytest.mark.parametrize(
    "wrong", [{"runs": [[0, 1, 0]]}, {"runs": [[1, 0, 0, 4]]}, {"used": True}, {"used": 9}, {"another": 1}]
)
def test_kept_tokens_that_cannot_be_read_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the checkpoint's kept tokens"):
        Kept.of({"runs": [[0, 1, 0, 4]], "used": 0} | wrong)
