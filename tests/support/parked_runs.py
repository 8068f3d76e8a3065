"""A run whose trainer has declared that it can park, as it is observed: training, parked, resumed, gone."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.observation import (
    AttemptSeen,
    FileSeen,
    HeartbeatSeen,
    JobsSeen,
    Life,
    LivenessEvidence,
    ParkedSeen,
    ProcessState,
    WriterSeen,
)
from sentinel.plan.readings_seen import JournalFacts
from sentinel.plan.restart.actions import Action, Park, Release, Resume
from sentinel.plan.restart.decision import decide_rung
from tests.support.recovery_plans import POLICY, apply, incident, run

ROLLBACK = "incident-1-r1"
ME = "n1 boot 41 900"
HERE = ProcessState(life=Life.ALIVE, sentence="process 41 of attempt 1 on n1 is alive")
WRITERS = (WriterSeen(id="process 41", group="41"), WriterSeen(id="process 42", group="41"))
JOURNAL = FileSeen(what="attempts/0001.jsonl", age_s=30.0, attempt=1)
SAVED = FileSeen(what="global_step80/shard", age_s=90.0, checkpoint=True)
LOG = FileSeen(what="job.log", age_s=31.0)
BEAT = HeartbeatSeen(what="rank 0", age_s=3.0, expires_s=30.0, rank=0, process=ME)
PARKED = ParkedSeen(attempt=1, rollback=ROLLBACK, global_step=88, writers=("process 41",), process=HERE, identity=ME)


def training(**changed: object) -> Facts:
    """A diverged run whose newest attempt can park."""
    seen: dict[str, object] = {
        "jobs": JobsSeen(writers=WRITERS),
        "attempts": (AttemptSeen(number=1, process_state=HERE),),
        "journals": (JournalFacts(number=1, reported=True, can_park=True, made=88),),
        "files_seen": (JOURNAL, SAVED, LOG),
        "heartbeats": (),
        "quiet_s": 3.0,
        "gone_after_s": 3600.0,
    }
    return run(**(seen | changed))


def evidence() -> LivenessEvidence:
    """Of a run that is parked, by every witness."""
    return parked(training()).liveness


def parked(state: Facts, rollback: str = ROLLBACK) -> Facts:
    number = state.newest_attempt or 0
    journal = replace(JOURNAL, what=f"attempts/{number:04d}.jsonl", attempt=number)
    said = replace(PARKED, attempt=number, rollback=rollback)
    return state.changed(parked=said, heartbeats=(BEAT,), files_seen=(journal, SAVED, LOG))


def gone(state: Facts) -> Facts:
    over = ProcessState(life=Life.GONE, sentence="process 41 of attempt 1 on n1 is not there any more")
    attempts = tuple(replace(one, process_state=over) for one in state.liveness.attempts)
    jobs = replace(state.jobs, writers=())
    return state.changed(jobs=jobs, attempts=attempts, parked=None, heartbeats=(), files_seen=())


def resumed(state: Facts, rollback: str = ROLLBACK) -> Facts:
    """The next attempt has reported that it was begun for the rollback, in the same processes."""
    number = (state.newest_attempt or 0) + 1
    before = tuple(replace(one, finished=True) for one in state.readings.journals)
    old = tuple(replace(one, finished=True) for one in state.liveness.attempts)
    return state.changed(
        parked=None,
        heartbeats=(),
        journals=(*before, JournalFacts(number=number, reported=True, can_park=True, rollback=rollback)),
        attempts=(*old, AttemptSeen(number=number, rollback=rollback, process_state=HERE)),
    )


def after(state: Facts, action: Action) -> Facts:
    """What the run looks like once the action has had its effect upon a trainer that obeys."""
    match action:
        case Park(_, rollback, _):
            return parked(state, rollback)
        case Resume(_, rollback, _, _):
            return resumed(state, rollback)
        case Release():
            return state.changed(parked=None)
        case _:
            return apply(state, action)


def in_place() -> Rollback:
    """A rung that is decided to be restarted in place."""
    made = decide_rung(incident(), training(), POLICY).decision
    assert made is not None
    assert made.in_place
    return made
