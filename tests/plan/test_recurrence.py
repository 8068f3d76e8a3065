"""A divergence soon after a recovery goes on with the ladder of the incident before."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.events import closed, fold, opened
from sentinel.plan.incident.incident import Incident
from sentinel.plan.incident.log_events import Opened
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.other_rungs import Skip, Wait
from sentinel.plan.outcome import Memory
from sentinel.plan.restart.decision import rungs_left
from sentinel.plan.turn import decide
from tests.plan.looks import look
from tests.support.recovery_plans import BASELINE, DIVERGED, decision, incident

LADDER = tuple(Rung(name=name, hypothesis="…", reseed=True) for name in "abc")
POLICY = Policy(mode="act", ladder=LADDER, hold_steps=500)
WAITED, SKIPPED = Wait(rung="b", hypothesis="…", from_step=1, until_step=2), Skip(rung="c", hypothesis="…", reason="…")


HEALED, UNDONE = incident(status="closed", outcome="healed"), incident(status="closed", outcome="undone", attempt=0)


def before(*rungs: str, closed_step: int | None = 600, **more: Any) -> Incident:
    rollbacks = [replace(decision(), rung=name) for name in rungs]
    ended = {"status": "closed", "outcome": "recovered", "closed_step": closed_step}
    return incident(rollbacks=rollbacks, **ended, **more)


@pytest.mark.parametrize(
    ("onset", "earlier", "tried"),
    [
        (1100, [before("a")], ("a",)),
        (1101, [before("a")], ()),
        (99, [before("a")], ()),  # begun anew by a person
        (700, [before("a", closed_step=None)], ()),  # its log is older
        (700, [before("b", tried_before=("a",))], ("a", "b")),
        (700, [before("a", waits=[WAITED], skips=[SKIPPED])], ("a",)),
        (700, [before("a"), HEALED], ("a",)),
        (700, [before("a"), UNDONE], ()),
        (700, [HEALED], ()),
    ],
)
def test_the_rungs_of_a_recovery_that_did_not_hold_are_recorded(
    onset: int, earlier: list[Incident], tried: tuple[str, ...]
) -> None:
    verdict = replace(DIVERGED, onset_range=(onset, onset + 2), alarm_step=onset + 9)
    (event,) = decide(look(verdict=verdict, incidents=tuple(earlier)), POLICY, Memory()).records
    assert isinstance(event, Opened)
    assert event.tried_before == tried


@pytest.mark.parametrize(
    ("tried_before", "tried", "left"),
    [
        ("", "", "abc"),
        ("a", "", "bca"),
        ("a", "bc", "a"),
        ("ab", "", "cab"),
        ("abca", "", "bca"),
        ("abc", "a", "bc"),
        ("", "abc", ""),
    ],
)
def test_rungs_of_before_are_the_last_that_are_left_the_oldest_first(tried_before: str, tried: str, left: str) -> None:
    found = before(*tried, tried_before=tuple(tried_before))
    assert "".join(rung.name for rung in rungs_left(found, POLICY)) == left


@given(st.lists(st.sampled_from("aabc"), max_size=5), st.integers(1, 12))
def test_in_a_chain_of_relapses_every_rung_is_used_as_often_as_any_other(names: list[str], relapses: int) -> None:
    ladder = tuple(Rung(name=name, hypothesis="…", reseed=True) for name in [*names, "z"])
    used: list[str] = []
    for _ in range(relapses):
        used.append(rungs_left(before(tried_before=tuple(used)), replace(POLICY, ladder=ladder))[0].name)
    assert used == list(islice(cycle([*names, "z"]), relapses))


def test_both_are_read_back_from_the_log_and_left_out_where_they_say_nothing() -> None:
    again = opened(2, 1, BASELINE, None, reason="…", tried_before=("a",))
    events = (opened(1, 1, BASELINE, None, reason="…"), closed("incident-1", "recovered", "…", 600), again)
    first, second = fold(event_of({**event.to_json(), "time_unix_s": 1.0}) for event in events)
    assert (first.closed_step, second.tried_before) == (600, ("a",))
    assert "tried_before" not in events[0].to_json()
    assert "judged_step" not in closed("incident-1", "undone", "…").to_json()
