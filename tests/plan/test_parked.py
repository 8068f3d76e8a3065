"""A trainer counts as parked only where every witness agrees; one that contradicts is enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from sentinel.plan.restart.in_place.parked import why_not_parked
from sentinel.plan.restart.liveness import life_of, settles
from tests.support.parked_runs import BEAT, HERE, JOURNAL, LOG, PARKED, ROLLBACK, SAVED, WRITERS, evidence

AGREED = evidence()
ELSEWHERE = ProcessState(life=Life.UNKNOWN, sentence="process 41 of attempt 1 on n1 can't be seen: this is host login")
DEAD = ProcessState(life=Life.GONE, sentence="process 41 of attempt 1 on n1 is not there any more")
ONE = (AttemptSeen(number=1, process_state=HERE),)
OTHER = HeartbeatSeen(what="rank 0 (process 77 on n9)", age_s=2.0, expires_s=30.0, rank=0, process="n9 boot 77 5")


def but(**changed: object) -> LivenessEvidence:
    return replace(AGREED, **changed)  # type: ignore[arg-type]


def said(**changed: object) -> LivenessEvidence:
    seen: ParkedSeen = replace(PARKED, **changed)  # type: ignore[arg-type]
    return but(parked=seen)


def test_a_trainer_is_parked_where_every_witness_agrees() -> None:
    known = life_of(AGREED, except_for=ROLLBACK)
    assert known.life is Life.PARKED
    assert known.sentence == "attempt 1 is parked at step 88: it writes nothing, and waits for incident-1-r1"
    assert life_of(AGREED).life is Life.PARKED
    assert why_not_parked(AGREED, ROLLBACK) is None


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (but(parked=None), "the newest record of the newest attempt is not `parked`"),
        (said(rollback="incident-1-r2"), "attempt 1 is parked for incident-1-r2, not for incident-1-r1"),
        (
            but(attempts=(*ONE, AttemptSeen(number=2, process_state=HERE))),
            "attempt 2 has begun since attempt 1 parked",
        ),
        # the launcher
        (
            but(jobs=JobsSeen(writers=(WriterSeen(id="process 77", group="77"),))),
            "the launcher does not see the process or the job that attempt 1 named at its start",
        ),
        (
            but(jobs=JobsSeen(writers=(*WRITERS, WriterSeen(id="process 77", group="77")))),
            "process 77 is not of attempt 1, and may write",
        ),
        (
            but(jobs=JobsSeen(writers=(*WRITERS, WriterSeen(id="job 9")))),
            "job 9 is not of attempt 1, and may write",
        ),
        # its process, on its host
        (said(process=None), "attempt 1 did not name its process, its host and its start: it may be another one"),
        (said(identity=None), "attempt 1 did not name its process, its host and its start: it may be another one"),
        (said(process=DEAD), DEAD.sentence),
        (
            replace(said(process=ELSEWHERE), heartbeats=()),
            f"{ELSEWHERE.sentence}, and no heartbeat of it is renewed",
        ),
        # heartbeats
        (
            but(heartbeats=(BEAT, OTHER)),
            "rank 0 (process 77 on n9) renewed its heartbeat 2 s ago, and it is no process of attempt 1",
        ),
        (
            replace(said(job_id="7"), heartbeats=(BEAT, replace(OTHER, job_id="7"))),  # a requeue's rank 0
            "rank 0 (process 77 on n9) renewed its heartbeat 2 s ago, and it is no process of attempt 1",
        ),
        (
            but(heartbeats=(BEAT, replace(OTHER, process=None, rank=None))),  # a heartbeat that can't be read
            "rank 0 (process 77 on n9) renewed its heartbeat 2 s ago, and it is no process of attempt 1",
        ),
        # files
        (
            but(files_seen=(JOURNAL, replace(SAVED, age_s=20.0), LOG)),
            "global_step80/shard was written 10 s after attempt 1 reported to be parked",
        ),
        (
            but(files_seen=(JOURNAL, SAVED, replace(LOG, age_s=5.0))),
            "job.log was written 25 s after attempt 1 reported to be parked",
        ),
        (
            but(files_seen=(JOURNAL, FileSeen(what="attempts/0000.jsonl", age_s=1.0, attempt=0))),
            "attempts/0000.jsonl was written 29 s after attempt 1 reported to be parked",
        ),
        (but(files_seen=(SAVED, LOG)), "the journal of attempt 1 can't be seen"),
    ],
)
def test_one_witness_that_contradicts_is_enough(seen: LivenessEvidence, why: str) -> None:
    assert why_not_parked(seen, ROLLBACK) == why
    assert life_of(seen, except_for=ROLLBACK).life is not Life.PARKED


def test_a_job_of_which_nobody_can_say_what_runs_is_not_parked() -> None:
    seen = but(jobs=JobsSeen(known=False, why_unknown="squeue timed out after 30 s"))
    assert why_not_parked(seen, ROLLBACK) == "job state unknown: squeue timed out after 30 s"
    assert life_of(seen, except_for=ROLLBACK).life is Life.UNKNOWN


def test_a_trainer_that_is_parked_for_another_rollback_is_alive() -> None:
    assert life_of(AGREED, except_for="incident-1-r2").life is Life.ALIVE


def test_a_process_out_of_sight_is_known_by_its_own_heartbeat() -> None:
    """As of a daemon on a login node: the job is visible, the process is not."""
    job = JobsSeen(writers=(WriterSeen(id="7"),))
    seen = replace(said(process=ELSEWHERE, writers=("process 41", "7"), job_id="7"), jobs=job)
    other_node = replace(OTHER, rank=8, job_id="7")
    assert life_of(replace(seen, heartbeats=(BEAT, other_node)), except_for=ROLLBACK).life is Life.PARKED


def test_what_waits_in_a_queue_writes_nothing_yet() -> None:
    queued = WriterSeen(id="job 9", pending=True)
    assert life_of(but(jobs=JobsSeen(writers=(*WRITERS, queued))), except_for=ROLLBACK).life is Life.PARKED


def test_a_file_of_the_same_moment_is_none_that_came_later() -> None:
    """Two filesystems' clocks differ, and the log's last line is written beside the record."""
    assert life_of(but(files_seen=(JOURNAL, SAVED, replace(LOG, age_s=29.0))), except_for=ROLLBACK).life is Life.PARKED


def test_checkpoints_of_a_parked_trainer_have_to_be_quiet_as_those_of_a_gone_one() -> None:
    """A client of a file server may see the last bytes of a save a minute late."""
    fresh = but(files_seen=(replace(JOURNAL, age_s=1.0), replace(SAVED, age_s=2.0)))
    assert life_of(fresh, except_for=ROLLBACK).life is Life.PARKED
    assert settles(fresh, except_for=ROLLBACK) is not None
    assert settles(fresh) is None  # a job that is to be stopped
    assert settles(AGREED, except_for=ROLLBACK) is None
