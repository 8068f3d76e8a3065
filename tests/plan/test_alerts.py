"""What is wrong beside the loss: when a person is told of it, and when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.alerts import failed_look
from sentinel.plan.look import Failure, Memory
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.plan.policy import Policy
from sentinel.plan.trouble import AGAIN_S, Alert, Trouble, is_due, troubles_of, unsettled, updated
from sentinel.plan.turn import next_turn
from tests.plan.looks import DOWN, HEALTHY, STALLED, look
from tests.plan.test_page import event, relieved, troubled


def trouble(alerted_unix_s: float | None = None, topic: Any = "struggling") -> Trouble:
    return Trouble(topic=topic, severity="warning", reason="no answer", since_unix_s=0.0, alerted_unix_s=alerted_unix_s)


@pytest.mark.parametrize(
    ("met", "now_unix_s", "told"),
    [
        (trouble(), 899, False),
        (trouble(), 900, True),
        (trouble(alerted_unix_s=900), 901, False),
        (trouble(alerted_unix_s=900), 899 + AGAIN_S, False),
        (trouble(alerted_unix_s=900), 900 + AGAIN_S, True),
        (trouble(alerted_unix_s=900, topic="down"), 900 + 10 * AGAIN_S, False),
    ],
)
def test_what_lasts_is_told_once_and_what_struggles_every_hour(met: Trouble, now_unix_s: float, told: bool) -> None:
    assert is_due(met, now_unix_s, within_s=900) is told


def test_a_daemon_that_is_started_again_knows_what_was_told() -> None:
    told = troubles_of([troubled(), troubled("down"), relieved("down"), troubled(time_unix_s=4600)])
    assert told == {"struggling": Trouble(**_facts(told["struggling"]))}
    assert (told["struggling"].since_unix_s, told["struggling"].alerted_unix_s) == (50.0, 4600.0)


def _facts(met: Trouble) -> dict[str, Any]:
    return {key: getattr(met, key) for key in ("topic", "severity", "reason", "since_unix_s", "alerted_unix_s")}


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ([], False),
        (["intent", "failed"], True),
        (["intent", "failed", "intent", "done"], False),
        (["intent", "done", "intent", "failed"], True),
        (["intent", "failed", "stopped"], False),
        (["intent", "failed", "troubled"], True),
    ],
)
def test_a_turn_that_tries_nothing_is_no_success(kinds: list[str], answer: bool) -> None:
    events = [event(kind) for kind in kinds]
    assert unsettled(events, 200.0, within_s=900) is answer
    assert unsettled(events, 1200.0, within_s=900) is False


def test_a_struggle_is_written_down_once_an_hour_and_when_it_is_over() -> None:
    log: list[Any] = []
    memory, policy = Memory(), Policy(mode="act", confirm_within_s=900)
    for minute in range(0, 150, 5):
        if minute == 70:  # another daemon takes over, which looks once before its looks fail
            turn = next_turn(look(events=tuple(log), now_unix_s=60.0 * minute, failure=Failure(reason="…")), policy)
            memory = turn.memory
        records, memory = failed_look(f"no answer at {minute}", memory, policy, 60.0 * minute, last=None)
        log += [{**record, "time_unix_s": 60.0 * minute} for record in records]
    turn = next_turn(look(events=tuple(log), now_unix_s=60.0 * 145, memory=memory), policy)
    log += [{**record, "time_unix_s": 60.0 * 145} for record in turn.alert_records]
    assert [(e["event"], e["time_unix_s"] / 60) for e in log] == [
        ("troubled", 15),
        ("troubled", 75),
        ("troubled", 135),
        ("relieved", 145),
    ]
    assert (log[0]["reason"], log[0]["severity"]) == ("no answer at 15", "warning")
    assert troubles_of(log) == {}


def test_what_is_over_before_anybody_was_told_leaves_no_trace() -> None:
    known: dict[str, Trouble] = {}
    met = Alert(topic="struggling", reason="no answer", within_s=900)
    for now_unix_s, alert in ((0.0, met), (800.0, met), (810.0, Alert(topic="struggling")), (1000.0, met)):
        known, due, over = updated(known, [alert], now_unix_s)
        assert (due, over) == ((), ())
    assert known["struggling"].since_unix_s == 1000.0


def test_a_topic_of_which_nothing_is_known_stays_as_it_was() -> None:
    down = {"down": trouble(alerted_unix_s=5.0, topic="down")}
    assert (
        updated(down, [Alert(topic="blind", reason="the readings are away", within_s=60)], 9.0)[0]["down"]
        == down["down"]
    )


OLD = WriterSeen(id="job 7", foreign="job 7 is an other account's")
FOREIGN = JobsSeen(writers=(OLD,))
BLIND = Verdict(kind=VerdictKind.BLIND, reason="the readings are away: nothing is known")


@pytest.mark.parametrize(
    ("seen", "policy", "told"),
    [
        ({"verdict": HEALTHY}, Policy(), []),
        ({"failure": Failure(reason="sbatch timed out")}, Policy(), [("struggling", "warning", 900.0)]),
        ({"failure": Failure(reason="…"), "incidents": None}, Policy(), [("struggling", "critical", 900.0)]),
        ({"jobs": JobsSeen(known=False, why_unknown="squeue timed out")}, Policy(), [("struggling", "warning", 900.0)]),
        ({"jobs": JobsSeen(known=False, elsewhere=True)}, Policy(), []),
        ({"paging_problem": "the disk is full"}, Policy(), [("paging", "critical", 0.0)]),
        ({"verdict": BLIND, "overlap": "1 and 2 train"}, Policy(), [("blind", "warning", 900.0)]),
        ({"overlap": "1 and 2 train"}, Policy(), [("overlap", "critical", 0.0)]),
        ({"verdict": STALLED}, Policy(), [("stalled", "critical", 0.0)]),
        ({"verdict": STALLED}, Policy(mode="act"), [("stalled", "critical", 0.0)]),  # and not down
        ({"jobs": FOREIGN}, Policy(mode="act"), [("unknown", "critical", 60.0)]),
        ({"jobs": FOREIGN}, Policy(), []),
        (
            {"jobs": FOREIGN, "verdict": STALLED},
            Policy(mode="act"),
            [("unknown", "critical", 0), ("stalled", "critical", 0)],
        ),
        ({"verdict": DOWN, "jobs": JobsSeen()}, Policy(), [("down", "warning", 900.0)]),
        ({"verdict": DOWN, "jobs": JobsSeen()}, Policy(mode="act"), [("down", "critical", 0.0)]),
        ({"verdict": DOWN, "jobs": JobsSeen(), "paused": True}, Policy(mode="act"), []),
    ],
)
def test_each_thing_that_is_wrong_is_an_alert(seen: Any, policy: Policy, told: list[Any]) -> None:
    turn = next_turn(look(**{"verdict": HEALTHY, **seen}), policy)
    assert [(a.topic, a.severity, a.within_s) for a in turn.alerts if a.reason is not None] == told
    assert turn.struggles is any(topic == "struggling" for topic, *_ in told)


def test_after_an_action_that_failed_a_turn_that_tries_nothing_ends_no_struggle() -> None:
    failed = (event("failed", 1990.0, None, action={"kind": "start_job"}, reason="…"),)
    assert not any(a.topic == "struggling" for a in next_turn(look(events=failed), Policy()).alerts)
    assert any(a == Alert(topic="struggling") for a in next_turn(look(), Policy()).alerts)
