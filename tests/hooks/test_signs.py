"""Which ranks a step waits for: from two looks at what every rank left, and with real processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.judge.history import sentence_of
from sentinel.vocabulary.sample import RanksStandStill, decode, encode
from tests.support.rank_cases import run
from trainer_hooks.ranks.signs import BEHIND, STOPPED, Sign, Still, record_of, standing_still

NOW = {"attempt": 1, "global_step": 7, "time_unix_s": 1000.0}
BEFORE = {rank: Sign(count=3, host=f"node-{rank}", pid=100 + rank, at=(7, 2), waits_s=30.0) for rank in range(4)}
AFTER = {rank: replace(sign, count=5, waits_s=60.0) for rank, sign in BEFORE.items()}


def named(after: dict[int, Sign], before: dict[int, Sign] = BEFORE) -> list[tuple[int, str, float]]:
    found = standing_still(after, before, now_unix_s=1000.0, quiet_since_unix_s=940.0)
    return [(one.rank, one.how, one.since_unix_s) for one in found]


def test_ranks_that_all_live_and_came_as_far_are_not_named() -> None:
    assert named(AFTER) == []


def test_a_rank_without_a_new_sign_is_stopped_since_the_last_step() -> None:
    assert named(AFTER | {2: BEFORE[2]}) == [(2, STOPPED, 940.0)]


@pytest.mark.parametrize("at", [(7, 1), (6, 2)])
def test_a_rank_that_lives_and_did_not_come_as_far_is_behind_since_it_came_by_last(at: tuple[int, int]) -> None:
    assert named(AFTER | {3: replace(AFTER[3], at=at, waits_s=55.0)}) == [(3, BEHIND, 945.0)]


def test_nobody_is_behind_where_half_of_the_ranks_are() -> None:
    assert named(AFTER | {r: replace(AFTER[r], at=(7, 1)) for r in (2, 3)}) == []


def test_a_rank_that_never_left_a_sign_before_is_not_known_to_be_stopped() -> None:
    assert named(AFTER, {r: BEFORE[r] for r in (0, 1, 2)}) == []


def test_the_record_travels_and_becomes_a_sentence() -> None:
    still = tuple(Still(rank=r, host="node-2", pid=102, since_unix_s=940.0, how=STOPPED) for r in range(9))
    record = record_of(still, NOW)
    assert decode(encode(record)) == record
    sentence = sentence_of(record_of(still[:1], NOW))
    assert sentence == "rank 0 on node-2 (pid 102) gives no sign of life since 1970-01-01 00:15:40 UTC"
    assert str(sentence_of(record)).endswith("; and 1 ranks more")
    assert sentence_of(RanksStandStill(**NOW)) is None  # the training goes on
    assert sentence_of(None) is None


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_rank_that_a_signal_stopped_is_named_until_it_goes_on() -> None:
    first = run("signs:4:2")["signs:4:2"][0]
    (named, nobody) = first["told"]
    assert [(one["rank"], one["how"]) for one in named] == [(3, STOPPED)]
    assert named[0]["pid"] == first["pid_of_the_last"]
    assert nobody == []
