"""A run is alive if any witness says so, gone by positive evidence alone, and unknown where they contradict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentinel.plan.observation import AttemptSeen, FileSeen, JobsSeen, Life, LivenessEvidence, ProcessState, WriterSeen
from sentinel.plan.restart.liveness import hindered, life_of

ALIVE = ProcessState(life=Life.ALIVE, sentence="Slurm shows job 7 as RUNNING")
ENDED = ProcessState(life=Life.GONE, sentence="Slurm shows job 7 as FAILED")
LIKELY = ProcessState(life=Life.GONE, sentence="process 12 of attempt 1 on n1 is not there any more", certain=False)
UNSEEN = ProcessState(life=Life.UNKNOWN, sentence="Slurm does not know job 7")
JOB = WriterSeen(id="job 7")
NO_JOB = JobsSeen()
LAST_ENDED = JobsSeen(process_states={None: ENDED})


def journal(age_s: float, attempt: int = 1) -> FileSeen:
    return FileSeen(what=f"attempts/{attempt:04d}.jsonl", age_s=age_s, attempt=attempt)


def saved(age_s: float) -> FileSeen:
    return FileSeen(what="global_step10/shard", age_s=age_s, checkpoint=True)


def one(process_state: ProcessState | None = None, **more: bool) -> tuple[AttemptSeen, ...]:
    return (AttemptSeen(number=1, process_state=process_state, **more),)


def seen(
    jobs: JobsSeen, attempts: tuple[AttemptSeen, ...], *files_seen: FileSeen, step_time_s: float | None = None
) -> LivenessEvidence:
    return LivenessEvidence(
        jobs=jobs, attempts=attempts, files_seen=files_seen, gone_after_s=3600.0, step_time_s=step_time_s
    )


@pytest.mark.parametrize(
    ("run", "life"),
    [
        # a job that is seen, and can be stopped
        (seen(JobsSeen(writers=(JOB,)), one(ALIVE)), Life.ALIVE),
        (seen(JobsSeen(writers=(JOB,)), one(), journal(1)), Life.ALIVE),
        (seen(JobsSeen(writers=(replace(JOB, pending=True),)), one(ENDED), journal(1)), Life.GONE),
        # positive evidence: a sample may be as young as it likes
        (seen(NO_JOB, one(ENDED), journal(1)), Life.GONE),
        (seen(NO_JOB, one(ENDED, finished=True), journal(0)), Life.GONE),
        (seen(NO_JOB, one(finished=True), journal(1)), Life.GONE),
        # evidence that could be about a namesake: a minute of silence, or five steps
        (seen(NO_JOB, one(LIKELY), journal(59)), Life.UNKNOWN),
        (seen(NO_JOB, one(LIKELY), journal(61)), Life.GONE),
        (seen(NO_JOB, one(LIKELY), journal(61), step_time_s=30.0), Life.UNKNOWN),
        (seen(NO_JOB, one(UNSEEN, finished=True), journal(59)), Life.UNKNOWN),
        (seen(NO_JOB, one(UNSEEN, finished=True), journal(61)), Life.GONE),
        # no evidence but silence, of all that may have been written
        (seen(NO_JOB, one(UNSEEN), journal(3599)), Life.UNKNOWN),
        (seen(NO_JOB, one(UNSEEN), journal(3601)), Life.GONE),
        (seen(NO_JOB, one(UNSEEN), journal(3601), saved(5)), Life.UNKNOWN),
        (seen(NO_JOB, one(UNSEEN), journal(3601), FileSeen(what="job.log", age_s=5)), Life.UNKNOWN),
        (seen(NO_JOB, one(), journal(-7200)), Life.UNKNOWN),  # a file of the future
        # no attempt that has reported itself: a save can take longer than any silence
        (seen(NO_JOB, (), saved(5)), Life.UNKNOWN),
        (seen(NO_JOB, (), saved(90000)), Life.UNKNOWN),
        (seen(NO_JOB, (), FileSeen(what="job.log", age_s=3599)), Life.UNKNOWN),
        (seen(NO_JOB, (), FileSeen(what="job.log", age_s=3601)), Life.GONE),  # nothing was saved: it ended before that
        (seen(NO_JOB, ()), Life.GONE),
        (seen(LAST_ENDED, (), saved(59)), Life.UNKNOWN),
        (seen(LAST_ENDED, (), saved(61)), Life.GONE),
        # what contradicts the evidence
        (seen(NO_JOB, one(ALIVE), journal(5000)), Life.UNKNOWN),  # alive, and out of the launcher's reach
        (seen(NO_JOB, one(ENDED, grew_after_end=True), journal(61)), Life.UNKNOWN),
        (seen(NO_JOB, one(ENDED), journal(600), saved(5)), Life.UNKNOWN),  # somebody else saves there
        (seen(NO_JOB, one(ENDED), journal(40), saved(5)), Life.GONE),  # its own save, cut short
        (seen(JobsSeen(writers=(JOB,)), one(UNSEEN), journal(1)), Life.UNKNOWN),  # the job that is seen is another
        (seen(JobsSeen(known=False), one(ENDED)), Life.UNKNOWN),
    ],
)
def test_what_the_witnesses_say_together(run: LivenessEvidence, life: Life) -> None:
    known = life_of(run)
    assert known.life is life, known
    assert known.sentence.startswith("job state unknown") is (life is Life.UNKNOWN)


def test_the_sentence_names_the_contradiction_and_how_long_it_lasts() -> None:
    assert life_of(seen(NO_JOB, one(UNSEEN), journal(4))).sentence == (
        "job state unknown: attempts/0001.jsonl was written 4 s ago, but Slurm does not know job 7; nothing is "
        "done until that is resolved, or no file is written for 3600 s"
    )


def test_a_checkpoint_of_a_trainer_that_has_never_reported_itself_is_named_with_what_to_do() -> None:
    assert life_of(seen(NO_JOB, (), saved(7200))).sentence == (
        "job state unknown: global_step10/shard was written 7200 s ago, and no attempt has reported itself; [run] "
        "state_dir should name the folder that the trainer writes its journal to"
    )


def test_what_was_started_for_a_rollback_is_no_witness_against_it() -> None:
    """Its files are fresh, and its job runs: only what came before it has to be gone."""
    ours = WriterSeen(id="job 9", rollback="incident-1-r1")
    attempts = (*one(ENDED), AttemptSeen(number=2, rollback="incident-1-r1", process_state=ALIVE))
    run = seen(JobsSeen(writers=(ours,)), attempts, journal(90), journal(1, 2), saved(1))
    assert life_of(run, except_for="incident-1-r1").life is Life.GONE
    assert life_of(run).life is Life.ALIVE
    before = replace(run, attempts=(AttemptSeen(number=1, process_state=UNSEEN), attempts[1]))
    assert life_of(replace(before, files_seen=(journal(1),)), except_for="incident-1-r1").life is Life.UNKNOWN


@pytest.mark.parametrize(("pending", "life"), [(True, Life.UNKNOWN), (False, Life.GONE)])
def test_only_a_job_that_has_begun_can_have_written_what_nobody_signs(pending: bool, life: Life) -> None:
    ours = WriterSeen(id="job 9", rollback="incident-1-r1", pending=pending)
    run = seen(JobsSeen(writers=(ours,)), one(), journal(5))
    assert life_of(run, except_for="incident-1-r1").life is life


def test_a_job_of_another_account_is_alive_and_nothing_is_done_to_it() -> None:
    theirs = replace(JOB, foreign="job 7 belongs to alice, and sentinel runs as bob: run sentinel as alice")
    run = seen(JobsSeen(writers=(theirs,)), one(ALIVE))
    assert life_of(run).life is Life.ALIVE
    assert hindered(run) == theirs.foreign
    assert hindered(seen(JobsSeen(writers=(JOB,)), one(ALIVE))) is None
