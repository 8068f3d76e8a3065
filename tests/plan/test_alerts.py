"""What is wrong beside the loss: when a person is told of it, and when it is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.alerts.alerts import AGAIN_S, alert_states, failed_look, is_due, unsettled, updated
from sentinel.plan.alerts.page import pages
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Failure
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.plan.outcome import Alert, AlertState, Memory
from sentinel.plan.turn import decide
from sentinel.vocabulary.numbers import dump_json
from tests.plan.looks import DOWN, HEALTHY, STALLED, look
from tests.support.page_events import event, firing, resolved


def state(alerted_unix_s: float | None = None, topic: Any = "watch_failing") -> AlertState:
    return AlertState(
        topic=topic, severity="warning", reason="no answer", since_unix_s=0.0, alerted_unix_s=alerted_unix_s
    )


@pytest.mark.parametrize(
    ("met", "now_unix_s", "told"),
    [
        (state(), 899, False),
        (state(), 900, True),
        (state(alerted_unix_s=900), 901, False),
        (state(alerted_unix_s=900), 899 + AGAIN_S, False),
        (state(alerted_unix_s=900), 900 + AGAIN_S, True),
        (state(alerted_unix_s=900, topic="down"), 900 + 10 * AGAIN_S, False),
    ],
)
def test_an_alert_is_sent_once_and_a_failing_watch_every_hour(met: AlertState, now_unix_s: float, told: bool) -> None:
    assert is_due(met, now_unix_s, within_s=900) is told


def test_a_restarted_daemon_knows_which_alerts_it_sent() -> None:
    told = alert_states([firing(), firing("down"), resolved("down"), firing(time_unix_s=4600)])
    assert told == {"watch_failing": AlertState(**_facts(told["watch_failing"]))}
    assert (told["watch_failing"].since_unix_s, told["watch_failing"].alerted_unix_s) == (50.0, 4600.0)


def _facts(met: AlertState) -> dict[str, Any]:
    return {key: getattr(met, key) for key in ("topic", "severity", "reason", "since_unix_s", "alerted_unix_s")}


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        ([], False),
        (["intent", "failed"], True),
        (["intent", "failed", "intent", "done"], False),
        (["intent", "done", "intent", "failed"], True),
        (["intent", "failed", "stopped"], False),
        (["intent", "failed", "alert_firing"], True),
    ],
)
def test_a_turn_that_tries_nothing_is_no_success(kinds: list[str], answer: bool) -> None:
    events = [event(kind, action={"kind": "start_job"}) for kind in kinds]
    assert unsettled(events, 200.0, within_s=900) is answer
    assert unsettled(events, 1200.0, within_s=900) is False


def test_a_failing_watch_is_recorded_once_an_hour_and_when_it_is_over() -> None:
    log: list[Any] = []
    memory, policy = Memory(), Policy(mode="act", confirm_within_s=900)
    for minute in range(0, 150, 5):
        if minute == 70:  # another daemon takes over, which looks once before its looks fail
            turn = decide(
                look(events=tuple(log), now_unix_s=60.0 * minute, failure=Failure(reason="…")), policy, Memory()
            )
            memory = turn.memory
        records, memory = failed_look(f"no answer at {minute}", memory, policy, 60.0 * minute, last=None)
        log += [replace(record, time_unix_s=60.0 * minute) for record in records]
    turn = decide(look(events=tuple(log), now_unix_s=60.0 * 145), policy, memory)
    log += [replace(record, time_unix_s=60.0 * 145) for record in turn.alert_records]
    assert [(e.kind, e.time_unix_s / 60) for e in log] == [
        ("alert_firing", 15),
        ("alert_firing", 75),
        ("alert_firing", 135),
        ("alert_resolved", 145),
    ]
    assert (log[0].reason, log[0].severity) == ("no answer at 15", "warning")
    assert alert_states(log) == {}


def test_what_is_over_before_anybody_was_told_leaves_no_trace() -> None:
    known: dict[str, AlertState] = {}
    met = Alert(topic="watch_failing", reason="no answer", within_s=900)
    for now_unix_s, alert in ((0.0, met), (800.0, met), (810.0, Alert(topic="watch_failing")), (1000.0, met)):
        known, due, over = updated(known, [alert], now_unix_s)
        assert (due, over) == ((), ())
    assert known["watch_failing"].since_unix_s == 1000.0


def test_a_topic_of_which_nothing_is_known_stays_as_it_was() -> None:
    down = {"down": state(alerted_unix_s=5.0, topic="down")}
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
        ({"failure": Failure(reason="sbatch timed out")}, Policy(), [("watch_failing", "warning", 900.0)]),
        ({"failure": Failure(reason="…"), "incidents": None}, Policy(), [("watch_failing", "critical", 900.0)]),
        (
            {"jobs": JobsSeen(known=False, why_unknown="squeue timed out")},
            Policy(),
            [("watch_failing", "warning", 900.0)],
        ),
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
    turn = decide(look(**{"verdict": HEALTHY, **seen}), policy, Memory())
    assert [(a.topic, a.severity, a.within_s) for a in turn.alerts if a.reason is not None] == told
    assert turn.failing is any(topic == "watch_failing" for topic, *_ in told)


def test_after_an_action_that_failed_a_turn_that_tries_nothing_ends_no_struggle() -> None:
    failed = (event("failed", 1990.0, None, action={"kind": "start_job"}, reason="…"),)
    assert not any(a.topic == "watch_failing" for a in decide(look(events=failed), Policy(), Memory()).alerts)
    assert any(a == Alert(topic="watch_failing") for a in decide(look(), Policy(), Memory()).alerts)


def test_the_log_of_an_older_version_is_read_by_the_present_names(tmp_path: Path) -> None:
    lines = [
        {**firing().to_json(), "topic": "struggling", "event": "troubled"},
        {**resolved().to_json(), "topic": "struggling", "event": "relieved"},
        {**firing("down").to_json(), "event": "troubled"},
    ]
    log = tmp_path / "incidents.jsonl"
    log.write_text("".join(dump_json(line) + "\n" for line in lines))
    events = IncidentLog(log).read()
    assert list(alert_states(events)) == ["down"]
    told = [(page.key, page.status) for _, page in pages(events, "tr8")]
    assert told == [("tr8/watch_failing", "firing"), ("tr8/watch_failing", "resolved"), ("tr8/down", "firing")]
    assert "troubled" in log.read_text()
