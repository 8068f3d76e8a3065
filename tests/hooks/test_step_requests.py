"""One rank's boundaries, where exchanges with the others fail or never end; and a count that all ranks agree on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_hooks.control import step_requests
from trainer_hooks.control.agreed_count import AgreedCount
from trainer_hooks.control.step_requests import KILL_FILE, SIGTERM, STOP, Due, StepRequests
from trainer_hooks.errors import Guard


@dataclass
class Answer:
    result: Sequence[int] | None
    ended: bool = True
    waited: list[float] = field(default_factory=list)

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout_s: float) -> Sequence[int] | None:
        self.waited.append(timeout_s)
        return self.result


class OtherRank:
    """Answers each exchange with what is the larger of the two ranks' numbers, as one that has seen the same would."""

    def __init__(self, *, ends: bool = True, loses: Sequence[int] = ()) -> None:
        self.answers: list[Answer] = []
        self.ends, self.loses = ends, loses

    def exchange(self, numbers: Sequence[int]) -> Answer:
        lost = not self.ends or len(self.answers) + 1 in self.loses
        self.answers.append(Answer(None if lost else list(numbers), ended=self.ends))
        return self.answers[-1]


class Unreachable:
    def exchange(self, numbers: Sequence[int]) -> Answer:
        raise RuntimeError(f"{len(numbers)} numbers were not sent")


def test_exchanges_that_never_end_are_not_waited_for_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_requests, "_MOST_PENDING", 20)
    other = OtherRank(ends=False)
    requests = StepRequests(other, None, Guard(), alone=False)
    with caplog.at_level(logging.WARNING):
        assert all(requests.at_boundary(stop=SIGTERM) == Due() for _ in range(50))
    assert len(other.answers) == 50  # each is posted: the other ranks count on it
    assert all(answer.waited == [] for answer in other.answers)
    why = "20 exchanges between the ranks have no result"
    assert [record.message for record in caplog.records] == [step_requests._NO_LONGER % why]
    assert len(requests._pending) == 0


def test_a_rank_that_knows_of_a_request_waits_a_bounded_time_for_the_result_that_decides() -> None:
    other = OtherRank()
    requests = StepRequests(other, None, Guard(), alone=False)
    assert requests.at_boundary(stop=SIGTERM) == Due()
    assert requests.at_boundary() == Due()
    other.answers[-1].ended = False
    other.answers[-1].result = None
    assert requests.at_boundary() == Due()
    (waited,) = other.answers[1].waited
    assert 0 < waited <= step_requests.WAIT_S
    assert [requests.at_boundary(stop=SIGTERM) for _ in range(5)] == [Due()] * 5


def test_after_a_lost_exchange_nothing_is_obeyed() -> None:
    requests = StepRequests(OtherRank(loses=[3]), None, Guard(), alone=False)
    for _ in range(5):
        assert requests.at_boundary() == Due()
    assert [requests.at_boundary(stop=SIGTERM) for _ in range(5)] == [Due()] * 5


@pytest.mark.parametrize("ranks", [None, Unreachable()])
def test_a_rank_without_the_others_obeys_nothing_alone(ranks: Unreachable | None) -> None:
    guard = Guard()
    requests = StepRequests(ranks, None, guard, alone=False)
    assert [requests.at_boundary(stop=SIGTERM) for _ in range(5)] == [Due()] * 5
    assert guard.errors == (5 if ranks else 0)


def test_a_single_rank_obeys_at_its_next_boundary() -> None:
    requests = StepRequests(None, None, Guard(), alone=True)
    assert [requests.at_boundary(stop=level) for level in (0, SIGTERM, SIGTERM)] == [Due(), Due(stop="sigterm"), Due()]
    at_start = StepRequests(None, None, Guard(), {STOP: KILL_FILE}, alone=True)
    assert at_start.at_boundary() == Due(stop="kill_file")


class Round:
    """Exchanges between ranks that make their steps together."""

    def __init__(self, ranks: int) -> None:
        self.posted: list[list[Sequence[int]]] = [[] for _ in range(ranks)]

    def of(self, rank: int) -> PostedBy:
        return PostedBy(self, rank)


@dataclass
class PostedBy:
    round: Round
    rank: int

    def exchange(self, numbers: Sequence[int]) -> Pending:
        self.round.posted[self.rank].append(numbers)
        return Pending(self.round, len(self.round.posted[self.rank]) - 1)


@dataclass
class Pending:
    round: Round
    number: int
    lost: bool = False

    def done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> Sequence[int] | None:
        assert timeout_s <= step_requests.WAIT_S
        return [max(n) for n in zip(*(of_rank[self.number] for of_rank in self.round.posted), strict=True)]


@given(st.lists(st.lists(st.integers(1, 64), min_size=3, max_size=3), min_size=1, max_size=12), st.integers(0, 10**12))
def test_ranks_with_different_batches_use_the_same_count_at_every_step(steps: list[list[int]], start: int) -> None:
    ranks = Round(3)
    counts, own = [AgreedCount(ranks.of(rank), start) for rank in range(3)], [start] * 3
    for tokens in steps:
        for rank, count in enumerate(counts):
            own[rank] += tokens[rank]
            count.step_made(own[rank], 1.0)
        agreed = {count.now() for count in counts}
        assert len(agreed) == 1
        assert abs(agreed.pop() - max(own)) <= 64 * 2


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=12), st.integers(1, 64))
def test_the_count_is_exact_where_each_batch_is_as_long_as_its_weight_says(lengths: list[int], batch: int) -> None:
    ranks, own = Round(1), 100
    count = AgreedCount(ranks.of(0), own)
    assert count.now() == own
    for length in lengths:
        own += batch * length
        count.step_made(own, length)
        assert count.now() == own


def test_where_the_first_exchange_is_lost_the_rate_is_the_ranks_own() -> None:
    count = AgreedCount(OtherRank(loses=[1]), 7)
    made = []
    for step in range(1, 4):
        count.step_made(7 + 10 * step, 1.0)
        made.append(count.now())
    assert made == [17, 27, 37]


def test_a_lost_exchange_leaves_the_count_at_its_last_rate(caplog: pytest.LogCaptureFixture) -> None:
    other = OtherRank(loses=[4])
    count = AgreedCount(other, 0)
    made = []
    for step in range(1, 9):
        count.step_made(10 * step, 1.0)
        made.append(count.now())
    assert made == [10, 20, 30, 40, 50, 60, 70, 80]
    assert len([r for r in caplog.records if "counts were not exchanged" in r.message]) == 1
    assert len(other.answers) == 8
