"""What older releases have recorded and this one does not do any more still means what it meant."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sentinel.plan.alerts.sentences import story
from sentinel.plan.choose.ladder import DEFAULT_LADDER
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Incident, Proof
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.turn_unfinished import removed_turn
from sentinel.vocabulary.errors import IncidentLogError
from sentinel.vocabulary.numbers import load_object

RACED = Path(__file__).parents[1] / "data" / "removed_records" / "race_won.jsonl.xz"


def events() -> list[dict[str, Any]]:
    return [load_object(line) for line in lzma.decompress(RACED.read_bytes()).decode().splitlines()]


def left_for(incident: Incident) -> str | None:
    """Why a person is asked, of what is not gone on with."""
    turn = removed_turn(incident)
    return None if turn is None else str(turn.records[0].to_json()["reason"])


def after(recorded: Sequence[dict[str, Any]], kind: str, action: str | None = None) -> Incident:
    """The incident up to the last event of that kind."""
    last = max(
        n for n, e in enumerate(recorded) if e["event"] == kind and (action is None or e["action"]["kind"] == action)
    )
    (incident,) = fold(map(event_of, recorded[: last + 1]))
    return incident


def test_rungs_that_were_tried_side_by_side_count_as_tried_and_are_told() -> None:
    recorded = events()
    (incident,) = fold(map(event_of, recorded))
    (rollback,) = incident.rollbacks
    assert (incident.status, incident.outcome) == ("closed", "undone")
    assert (len(incident.tried), incident.failed_restarts) == (3, 3)
    assert (rollback.proof, rollback.applied, rollback.taken_back) == (Proof.CONFIRMED, True, True)
    assert rollback.names == ("incident-1-r1", "incident-1-p3")
    begun = next(e for e in recorded if e["event"] == "race_begun")
    assert incident.spent_gpu_hours == (begun["gpu_hours"] or 0.0) + (rollback.lost_gpu_hours or 0.0)
    told = [line.sentence for line in story(map(event_of, recorded), "incident-1")]
    assert any("race to step 120" in line for line in told)
    assert "started the probe incident-1-p1" in told
    assert "made the checkpoints of incident-1-p3 up to global_step120 the run's" in told
    assert len([line for line in told if line.startswith("the race has ended: ")]) == 1


def test_what_was_begun_and_is_not_gone_on_with_is_left_to_a_person_from_its_first_record_to_its_proof() -> None:
    recorded = events()
    left = {
        kind: left_for(after(recorded[:-4], kind, action))  # up to its closing
        for kind, action in (("opened", None), ("race_begun", None), ("race_ended", None), ("decided", None))
    }
    left["adopted"] = left_for(after(recorded, "done", "adopt_probe"))
    left["proved"] = left_for(after(recorded, "proved"))
    assert [kind for kind, why in left.items() if why is None] == ["opened", "proved"]
    assert "the probes end after step 120; `sentinel undo incident-1`" in str(left["race_begun"])
    assert left["race_ended"] == left["race_begun"]  # its winner is not the run's yet
    assert left["decided"] == left["adopted"]
    assert "incident-1-r1 makes the checkpoints of incident-1-p3 the run's" in str(left["decided"])


def test_a_race_that_nobody_won_or_that_could_not_begin_leaves_the_ladder_to_go_on() -> None:
    for void, tried in ((False, 3), (True, 0)):
        until = next(n for n, e in enumerate(events()) if e["event"] == "race_ended")
        recorded = events()[: until + 1]
        recorded[-1] |= {"winner": None, "void": void}
        (incident,) = fold(map(event_of, recorded))
        assert left_for(incident) is None
        assert (incident.current, len(incident.tried)) == (None, tried)
        assert len(DEFAULT_LADDER) > len(incident.tried)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("race_begun", {"gpu_hours": "three"}),
        ("race_begun", {"until_step": "120"}),
        ("race_begun", {"entrants": [{"rollback": "../p1", "rung": "reseed"}]}),
        ("race_ended", {"winner": {"probe": "../p1"}}),
        ("race_ended", {"winner": 3}),
        ("decided", {"adopts": {"probe": "../p1"}}),
    ],
)
def test_a_record_that_was_damaged_is_refused(kind: str, changed: dict[str, Any]) -> None:
    recorded = events()
    next(e for e in recorded if e["event"] == kind).update(changed)
    with pytest.raises(IncidentLogError, match=r"event \d+ of the incident log"):
        fold(map(event_of, recorded))
