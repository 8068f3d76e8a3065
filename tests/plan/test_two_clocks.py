"""The trainer's clock and the daemon's may be minutes apart: attempts and the log's order tell what came first."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sentinel.act.starts import _in_force
from sentinel.judge.history import History
from sentinel.plan.facts import Facts
from sentinel.plan.readings_seen import JournalFacts
from sentinel.plan.restart.restart import fruitless_starts, was_stopped_for_hanging
from sentinel.plan.turn_incident import made_since
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted, Sample
from tests.plan.looks import look as facts
from tests.support.log_lines import logged

DAEMON_UNIX_S = 1_000_000.0
START: dict[str, Any] = {"event": "intent", "action": {"kind": "start_job"}}
STOP_HUNG: dict[str, Any] = {"event": "intent", "action": {"kind": "stop_job", "keep_stacks": True}}


def history(clock_s: float, *, steps: Mapping[int, int], saved: tuple[int, ...] = ()) -> History:
    """Attempts with so many steps each, all from before the daemon's own events, by a trainer's clock that is wrong."""
    at = DAEMON_UNIX_S - 60.0 + clock_s
    records: list[Record] = []
    for attempt, made in steps.items():
        records.append(RunStarted(attempt=attempt, time_unix_s=at))
        records += [Sample(attempt=attempt, global_step=n, time_unix_s=at, loss=3.0) for n in range(1, made + 1)]
        if attempt in saved:
            records.append(CheckpointSaved(attempt=attempt, global_step=made, time_unix_s=at, tag=f"global_step{made}"))
    told = History()
    for record in records:
        told.push(record)
    return told


def journals_in(told: History) -> tuple[JournalFacts, ...]:
    return facts(history=told).readings.journals


def look(told: History, *events: dict[str, Any]) -> Facts:
    timed = logged(*({**event, "time_unix_s": DAEMON_UNIX_S} for event in events))
    return facts(history=told, events=timed)


CLOCKS = pytest.mark.parametrize("clock_s", [-600.0, 0.0, 600.0], ids=["behind", "right", "ahead"])


@CLOCKS
def test_steps_from_before_a_start_are_none_that_weremade_since(clock_s: float) -> None:
    assert made_since(journals_in(history(clock_s, steps={1: 200})), 1) == 0
    assert made_since(journals_in(history(clock_s, steps={1: 200, 2: 3})), 1) == 3
    assert made_since(journals_in(history(clock_s, steps={1: 7})), 0) == 7
    assert made_since(journals_in(history(clock_s, steps={1: 200, 2: 3})), None) == 0


@CLOCKS
def test_starts_are_fruitless_until_an_attempt_that_came_after_them_has_saved(clock_s: float) -> None:
    twice = [{**START, "newest_attempt": 1}, {**START, "newest_attempt": 2}]
    assert fruitless_starts(look(history(clock_s, steps={1: 5, 2: 5}, saved=(1,)), *twice)) == 2
    assert fruitless_starts(look(history(clock_s, steps={1: 5, 2: 5, 3: 5}, saved=(1, 2)), *twice)) == 1
    assert fruitless_starts(look(history(clock_s, steps={1: 5, 2: 5, 3: 5}, saved=(1, 3)), *twice)) == 0
    decided = [*twice, {"event": "decided", "incident": "incident-1"}, {**START, "newest_attempt": 2}]
    assert fruitless_starts(look(history(clock_s, steps={1: 5, 2: 5}), *decided)) == 1


@CLOCKS
def test_the_attempt_thatwas_stopped_for_hanging_is_known_by_its_number(clock_s: float) -> None:
    told = history(clock_s, steps={1: 5, 2: 5})
    assert was_stopped_for_hanging(look(told, {**STOP_HUNG, "newest_attempt": 2}))
    assert not was_stopped_for_hanging(look(told, {**STOP_HUNG, "newest_attempt": 1}))


@CLOCKS
def test_a_decision_is_in_force_for_the_attempts_after_it(clock_s: float) -> None:
    rollback = SimpleNamespace(id="incident-1-r1", after_attempt=1, decided_unix_s=DAEMON_UNIX_S - 60.0)
    state = SimpleNamespace(
        folders=SimpleNamespace(overrides=SimpleNamespace(rollback=rollback.id)),
        incidents=[SimpleNamespace(rollbacks=[rollback])],
    )
    told = history(clock_s, steps={1: 5, 2: 5})
    of = [_in_force(told.attempts[number], cast("Any", state)) for number in (1, 2)]
    assert of == [None, rollback]
