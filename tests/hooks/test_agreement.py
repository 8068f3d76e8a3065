"""All ranks act on a request at the same step boundary, or none does: simulated ranks, with results that come late."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from trainer_hooks.control.agreement import Agreement

NAMES = ("stop", "save")
STEPS = 14
Acted = list[tuple[int, int, Mapping[str, int]]]  # (boundary, rank, levels)
Late = Mapping[tuple[int, int], int]
Seen = Mapping[tuple[int, int], Mapping[str, int]]  # {(boundary, rank): levels that it sees from there on}


class Exchanges:
    """What the ranks have posted. An exchange has a result once all ranks have posted theirs."""

    def __init__(self, ranks: int, lost: Collection[tuple[int, int]]) -> None:
        self.rows: dict[int, list[list[int]]] = {}
        self.ranks, self.lost = ranks, lost

    def post(self, number: int, row: list[int]) -> None:
        self.rows.setdefault(number, []).append(row)

    def result(self, number: int, rank: int) -> list[int] | None:
        assert len(self.rows[number]) == self.ranks  # a rank that waits for more would wait for itself
        if (number, rank) in self.lost:
            return None
        return [max(of_ranks) for of_ranks in zip(*self.rows[number], strict=True)]


def trained(
    ranks: int,
    seen: Seen,
    late: Late,
    *,
    lost: Collection[tuple[int, int]] = (),
    at_start: Mapping[str, int] | None = None,
) -> tuple[Acted, int, list[Agreement]]:
    """What the ranks do in STEPS steps, how often one waited, and their state at the end. late: {(exchange, rank):
    boundaries by which the result comes later than to the next boundary}. lost: (exchange, rank) without a result."""
    exchanges, waits = Exchanges(ranks, lost), 0
    acted: Acted = []
    agreements = [Agreement(NAMES, at_start) for _ in range(ranks)]
    pending: list[deque[int]] = [deque() for _ in range(ranks)]
    own: list[dict[str, int]] = [{} for _ in range(ranks)]
    for boundary in range(1, STEPS + 1):
        for rank, agreement in enumerate(agreements):
            own[rank].update(seen.get((boundary, rank), {}))
            agreement.begin()
            while pending[rank] and pending[rank][0] + 1 + late.get((pending[rank][0], rank), 0) <= boundary:
                agreement.take(pending[rank][0], exchanges.result(pending[rank].popleft(), rank))
            waits += agreement.waits
            while agreement.waits:
                agreement.take(pending[rank][0], exchanges.result(pending[rank].popleft(), rank))
            if due := agreement.decide():
                acted.append((boundary, rank, due))
            exchanges.post(boundary, agreement.row(own[rank]))
            pending[rank].append(boundary)
    return acted, waits, agreements


numbers = st.integers(1, STEPS)
some_ranks = st.integers(2, 5)
requests = st.dictionaries(
    st.tuples(numbers, st.integers(0, 4)),
    st.fixed_dictionaries({}, optional={"stop": st.integers(1, 2), "save": st.integers(1, 3)}),
    max_size=5,
)
delays = st.dictionaries(st.tuples(numbers, st.integers(0, 4)), st.integers(0, 4), max_size=30)


def of_all_ranks(exchanges: Collection[int], ranks: int) -> set[tuple[int, int]]:
    return {(number, rank) for number in exchanges for rank in range(ranks)}


@given(some_ranks, requests, delays, st.sets(numbers, max_size=2))
def test_all_ranks_act_on_the_same_levels_at_the_same_boundary_or_none_does(
    ranks: int, seen: Seen, late: Late, failing: set[int]
) -> None:
    acted, _, _ = trained(ranks, seen, late, lost=of_all_ranks(failing, ranks))
    for boundary in {boundary for boundary, _, _ in acted}:
        of_ranks = [(rank, due) for at, rank, due in acted if at == boundary]
        assert [rank for rank, _ in of_ranks] == list(range(ranks))
        assert all(due == of_ranks[0][1] for _, due in of_ranks)


@given(some_ranks, requests, delays, st.sets(st.tuples(numbers, st.integers(0, 4)), max_size=6))
def test_only_a_rank_that_lost_the_very_exchange_that_decides_may_differ_from_the_others(
    ranks: int, seen: Seen, late: Late, lost: set[tuple[int, int]]
) -> None:
    acted, _, _ = trained(ranks, seen, late, lost=lost)
    for boundary in {boundary for boundary, _, _ in acted}:
        of_ranks = {rank: due for at, rank, due in acted if at == boundary}
        with_result = [of_ranks.get(rank) for rank in range(ranks) if (boundary - 1, rank) not in lost]
        assert all(due == with_result[0] for due in with_result)
        assert all((boundary - 1, rank) not in lost for rank in of_ranks)


@given(some_ranks, requests, delays)
def test_each_level_is_acted_on_once_and_only_where_a_rank_has_seen_it(ranks: int, seen: Seen, late: Late) -> None:
    acted, _, _ = trained(ranks, seen, late)
    for name in NAMES:
        levels = [due[name] for _, rank, due in acted if rank == 0 and name in due]
        assert levels == sorted(set(levels))
        for boundary, _, due in acted:
            if name in due:
                asked = [b for (b, rank), own in seen.items() if rank < ranks and own.get(name) == due[name]]
                assert min(asked) + 2 <= boundary


@given(some_ranks, requests)
def test_a_request_is_obeyed_two_boundaries_after_a_rank_has_seen_it_where_results_come_within_a_step(
    ranks: int, seen: Seen
) -> None:
    acted, _, _ = trained(ranks, seen, {})
    for (boundary, rank), own in seen.items():
        for name, level in own.items():
            if rank < ranks and boundary + 2 <= STEPS:
                done = [at for at, _, due in acted if due.get(name, 0) >= level]
                assert min(done) <= boundary + 2


@given(some_ranks, delays, st.sets(numbers))
def test_no_rank_waits_where_nothing_is_asked_for(ranks: int, late: Late, failing: set[int]) -> None:
    acted, waits, agreements = trained(ranks, {}, late, lost=of_all_ranks(failing, ranks))
    assert (acted, waits) == ([], 0)
    if failing and min(failing) + 6 <= STEPS:
        assert all(agreement.failure is not None for agreement in agreements)


@given(some_ranks, requests, delays, st.integers(1, STEPS - 6))
def test_after_a_lost_exchange_requests_are_no_longer_obeyed_and_no_rank_waits_for_long(
    ranks: int, seen: Seen, late: Late, lost: int
) -> None:
    """Acknowledgements that were posted before the loss was known still bind."""
    acted, _, agreements = trained(ranks, seen, late, lost=of_all_ranks([lost], ranks))
    known_everywhere = lost + 1 + 4  # the longest delay
    assert all(boundary <= known_everywhere + 1 for boundary, _, _ in acted)
    assert all(agreement.failure is not None and not agreement.waits for agreement in agreements)


@given(some_ranks, delays, st.integers(1, 3), st.integers(0, 1))
def test_where_one_rank_has_lost_an_exchange_all_ranks_obey_nothing_more(
    ranks: int, late: Late, lost: int, rank: int
) -> None:
    _, _, agreements = trained(ranks, {}, late, lost={(lost, rank)})
    why = {agreement.failure for agreement in agreements}
    assert None not in why
    assert why <= {
        "an exchange between the ranks was not completed",
        "another rank lost an exchange between the ranks",
    }


@given(some_ranks, delays)
def test_what_all_ranks_learned_at_the_start_is_due_at_the_first_boundary(ranks: int, late: Late) -> None:
    acted, waits, _ = trained(ranks, {}, late, at_start={"stop": 1})
    assert acted == [(1, rank, {"stop": 1}) for rank in range(ranks)]
    assert waits == 0


def test_ranks_at_different_steps_obey_nothing() -> None:
    ahead, behind = Agreement(NAMES), Agreement(NAMES)
    ahead.begin()
    for agreement in (ahead, behind):
        agreement.begin()
    result = [max(pair) for pair in zip(ahead.row({"stop": 1}), behind.row({}), strict=True)]
    for agreement in (ahead, behind):
        number = agreement.number
        agreement.begin()
        agreement.take(number, result)
        assert agreement.failure == "the ranks exchanged different steps: 1 and 2"
        assert agreement.decide() == {}


def test_a_single_rank_acts_at_the_next_boundary_once_for_each_level() -> None:
    alone = Agreement(NAMES, {"save": 1})
    asked: list[dict[str, int]] = [{}, {"stop": 0}, {"save": 2}, {"save": 2}, {"save": 3, "stop": 2}]
    due = [alone.decide_alone(seen) for seen in asked]
    assert due == [{"save": 1}, {}, {"save": 2}, {}, {"save": 3, "stop": 2}]
