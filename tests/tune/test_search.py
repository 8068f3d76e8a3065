"""The search, as a pure function: on whatever map it is right, and how few probes it asks for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.lab.tune.search import Decision, Pacing, ProbeSeen, Space, answer_of_the_grid, decide, is_monotone
from sentinel.vocabulary.errors import ConfigError

SPACE = Space(
    starts=(8, 16, 32, 64),
    durations=(10, 20, 30, 40, 60, 80, 120, 160),
    first_duration=40,
    beginning_steps=10,
    horizon_steps=30,
)
WHOLE = ProbeSeen(calm_through=30)
AT_FIRST = ProbeSeen(fluctuated_at=4, calm_through=4)
LATER = ProbeSeen(fluctuated_at=22, calm_through=22)
Map = dict[Pacing, ProbeSeen]


def fluctuation_map(space: Space, rough: dict[int, bool], calm: dict[int, int]) -> Map:
    """start -> whether it fluctuates at the very beginning, and how many of its durations are calm."""
    told: Map = {}
    for start in space.starts:
        for place, duration in enumerate(space.durations):
            is_calm = place < calm[start] and not rough[start]
            told[Pacing(start, duration)] = AT_FIRST if rough[start] else WHOLE if is_calm else LATER
    return told


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    durations = tuple(sorted(draw(st.sets(st.integers(1, 400), min_size=1, max_size=40))))
    starts = tuple(sorted(draw(st.sets(st.integers(1, 30).map(lambda n: 8 * n), min_size=1, max_size=6))))
    first = draw(st.sampled_from(durations))
    return replace(SPACE, starts=starts, durations=durations, first_duration=first)


@st.composite
def monotone(draw: st.DrawFn) -> tuple[Space, Map]:
    """A longer duration fluctuates where a shorter one does; nothing is assumed of one start beside another."""
    space = draw(spaces())
    rough = {start: draw(st.booleans()) for start in space.starts}
    calm = {start: draw(st.integers(0, len(space.durations))) for start in space.starts}
    return space, fluctuation_map(space, rough, calm)


def searched(space: Space, told: Map, *, room: int = 1) -> tuple[Decision, list[Pacing]]:
    """What the search comes to, and what it has run; each round's probes answer before the next is asked for."""
    seen: Map = {}
    order: list[Pacing] = []
    while not (decision := decide(space, seen, room=room)).over:
        assert 0 < len(decision.probes) <= room
        assert len(set(decision.probes)) == len(decision.probes)
        for probe in decision.probes:
            assert seen.get(probe, ProbeSeen()).calm(space) is None, f"{probe} is asked for again"
            seen[probe] = told[probe]
            order.append(probe)
    return decision, order


@given(monotone(), st.integers(1, 4))
def test_on_any_monotone_map_the_search_finds_what_the_grid_finds(case: tuple[Space, Map], room: int) -> None:
    space, told = case
    assert searched(space, told, room=room)[0].chosen == answer_of_the_grid(space, told)


@given(monotone())
def test_a_start_costs_a_logarithm_of_the_durations(case: tuple[Space, Map]) -> None:
    space, told = case
    _, order = searched(space, told)
    place = space.durations.index(space.first_duration)
    halvings = math.ceil(math.log2(max(place, len(space.durations) - 1 - place) + 1))
    for start in space.starts:
        assert sum(probe.start == start for probe in order) <= 1 + halvings


@given(monotone())
def test_the_starts_below_the_answer_that_begin_roughly_cost_one_probe_each(case: tuple[Space, Map]) -> None:
    space, told = case
    _, order = searched(space, told)
    for start in space.starts:
        if told[Pacing(start, space.first_duration)] == AT_FIRST:
            assert sum(probe.start == start for probe in order) <= 1


@given(spaces(), st.data())
def test_on_any_map_at_all_the_search_ends_with_a_calm_pacing_or_with_none(space: Space, data: st.DataObject) -> None:
    kinds = st.sampled_from((AT_FIRST, LATER, WHOLE))
    told = {Pacing(s, t): data.draw(kinds) for s in space.starts for t in space.durations}
    decision, order = searched(space, told, room=data.draw(st.integers(1, 3)))
    assert len(order) <= len(told)
    assert decision.chosen is None or told[decision.chosen] == WHOLE


def test_the_first_probe_serves_both_questions() -> None:
    calm = decide(SPACE, {Pacing(8, 40): ProbeSeen(calm_through=10)})
    assert calm.probes == (Pacing(8, 40),), "its beginning is calm: it goes on to the horizon"
    assert decide(SPACE, {Pacing(8, 40): WHOLE}).probes == (Pacing(8, 80),)
    assert decide(SPACE, {Pacing(8, 40): LATER}).probes == (Pacing(8, 20),)


def test_a_rough_beginning_raises_the_start_and_a_later_fluctuation_does_not() -> None:
    assert decide(SPACE, {Pacing(8, 40): AT_FIRST}).probes == (Pacing(16, 40),)
    assert decide(SPACE, {Pacing(8, 40): LATER}).probes[0].start == 8


def test_a_start_with_no_calm_duration_gives_way_to_the_next() -> None:
    seen = {Pacing(8, duration): LATER for duration in SPACE.durations}
    assert decide(SPACE, seen).probes == (Pacing(16, 40),)


def test_with_room_the_next_start_is_tried_and_dropped_once_the_first_begins_calmly() -> None:
    both = decide(SPACE, {}, room=2)
    assert both.probes == (Pacing(8, 40), Pacing(16, 40))
    running = {Pacing(8, 40): ProbeSeen(calm_through=10), Pacing(16, 40): ProbeSeen(calm_through=8)}
    decision = decide(SPACE, running, room=2)
    assert decision.probes[0] == Pacing(8, 40)
    assert all(probe.start == 8 for probe in decision.probes)


def test_a_probe_that_another_has_answered_for_is_no_longer_wanted() -> None:
    seen = {Pacing(8, 40): LATER, Pacing(8, 60): ProbeSeen(calm_through=8), Pacing(8, 20): ProbeSeen(calm_through=8)}
    assert decide(SPACE, seen, room=2).probes[0] == Pacing(8, 20)
    assert Pacing(8, 60) not in decide(SPACE, seen, room=2).probes


def test_a_training_that_ends_by_itself_before_the_horizon_and_was_calm_is_calm() -> None:
    assert ProbeSeen(calm_through=20, ended=True).calm(SPACE) is True


def test_an_answer_at_the_edge_says_that_longer_ones_were_not_tried() -> None:
    told = fluctuation_map(SPACE, dict.fromkeys(SPACE.starts, False), dict.fromkeys(SPACE.starts, 8))
    decision, _ = searched(SPACE, told)
    assert decision.chosen == Pacing(8, 160)
    assert "longer ones may be as well" in decision.reason


def test_none_is_found_where_nothing_is_calm_and_it_is_said() -> None:
    told = fluctuation_map(SPACE, dict.fromkeys(SPACE.starts, True), dict.fromkeys(SPACE.starts, 0))
    decision, order = searched(SPACE, told)
    assert decision.over
    assert decision.chosen is None
    assert order == [Pacing(start, 40) for start in SPACE.starts]


def test_a_map_that_is_not_monotone_is_told_from_one_that_is() -> None:
    assert is_monotone(SPACE, {Pacing(8, 40): WHOLE, Pacing(8, 80): LATER})
    assert not is_monotone(SPACE, {Pacing(8, 40): LATER, Pacing(8, 80): WHOLE})
    assert is_monotone(SPACE, {Pacing(8, 40): LATER, Pacing(16, 80): WHOLE})


@pytest.mark.parametrize(
    "wrong",
    [{"starts": ()}, {"durations": (20, 10)}, {"first_duration": 11}, {"beginning_steps": 31}, {"starts": (0, 8)}],
)
def test_a_space_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(SPACE, **wrong)  # type: ignore[arg-type]


def test_a_grid_with_holes_gives_no_answer() -> None:
    with pytest.raises(ConfigError, match="no answer"):
        answer_of_the_grid(SPACE, {Pacing(8, 10): WHOLE})
