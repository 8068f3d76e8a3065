"""The demo's lines of progress: what happened, each incident and rollback named once; how each restart was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.demo.restarts import restarts_of
from sentinel.demo.story import _Follower, _line
from sentinel.vocabulary.sample import RunStarted, Sample, encode
from tests.support.log_lines import logged

OF: dict[str, Any] = {
    "incident": "incident-1",
    "rollback": "incident-1-r2",
    "attempt": 3,
    "checks": [{"what": "seed", "answer": "confirmed"}] * 2,
}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "proved", **OF}, "  attempt 3 confirms incident-1-r2: 2 checks hold"),
        ({"event": "rung_failed", **OF, "reason": "diverged again"}, "! incident-1-r2 "),
        (
            {"event": "closed", "incident": "incident-1", "outcome": "recovered", "reason": "it is better"},
            "! incident-1: closed, recovered: it is better",
        ),
        ({"event": "intent", **OF, "action": {"kind": "undo"}}, None),
    ],
)
def test_a_line_names_its_incident_or_rollback_once(event: dict[str, Any], line: str | None) -> None:
    (said,) = map(_line, logged(event))
    assert (said is None) == (line is None)
    if said is not None and line is not None:
        assert said.startswith(line)
        assert said.count("incident-1") == 1


def sample(attempt: int, time_unix_s: float) -> Sample:
    return Sample(attempt=attempt, time_unix_s=time_unix_s, global_step=1, loss=3.0)


def test_a_restart_is_measured_from_its_decision_to_its_first_step_and_is_what_the_trainer_says_it_was() -> None:
    decided = {"event": "decided", "incident": "incident-1", "rollback": "incident-1-r1", "time_unix_s": 100.0}
    events = logged(decided, decided | {"rollback": "incident-1-r2", "time_unix_s": 200.0})
    records = [
        RunStarted(attempt=1, time_unix_s=10.0),
        sample(1, 11.0),
        RunStarted(attempt=2, time_unix_s=101.0, rollback="incident-1-r1", in_place=True),
        sample(2, 102.5),
        sample(2, 103.5),
        RunStarted(attempt=3, time_unix_s=110.0, rollback="incident-1-r1"),  # a crash, and the same rollback
        sample(3, 111.0),
        RunStarted(attempt=4, time_unix_s=212.0, rollback="incident-1-r2"),
    ]
    assert [one.sentence for one in restarts_of(events, records)] == [
        "incident-1-r1 was resumed in place: 2.5 s from the decision to the first new step"
    ]
    assert [one.sentence for one in restarts_of(events, [*records, sample(4, 214.0)])][1:] == [
        "incident-1-r2 was started by a new job: 14.0 s from the decision to the first new step"
    ]


def test_the_demo_says_it_once_when_the_first_new_step_is_there(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    log, said = IncidentLog(tmp_path / "incidents.jsonl"), list[str]()
    for event in logged({"event": "decided", "incident": "incident-1", "time_unix_s": 100.0}):
        log.append(event)
    follower = _Follower(tmp_path, said.append)

    def told(*records: RunStarted | Sample) -> list[str]:
        with (tmp_path / "attempts" / "0002.jsonl").open("a") as journal:
            journal.writelines(f"{encode(record)}\n" for record in records)
        follower.look()
        return [line for line in said if "first new step" in line]

    assert told(RunStarted(attempt=2, time_unix_s=101.0, rollback="incident-1-r1", in_place=True)) == []
    sentence = "! incident-1-r1 was resumed in place: 2.5 s from the decision to the first new step"
    assert told(sample(2, 102.5)) == [sentence]
    assert told(sample(2, 103.5)) == [sentence]
