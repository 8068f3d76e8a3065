"""plan_rollback(decision, run, policy) -> Plan: the actions that a decision still needs, from what is true now.

The same function makes a plan and resumes one: it looks at the run, not at what was done before. Only the decision
(which rung, which target, which seed) is remembered, by the incident log, so that it is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Place, Rollback
from sentinel.plan.incident.other_rungs import Skip, Wait
from sentinel.plan.observation import Checkpoint, Life
from sentinel.plan.restart.actions import (
    Action,
    BranchWandb,
    CutTensorBoard,
    Park,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    RestorePinned,
    Resume,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)
from sentinel.plan.restart.in_place.stage import Stage, deadline_unix_s, stage_of
from sentinel.plan.restart.in_place.way import Way
from sentinel.plan.restart.liveness import hindered, settles
from sentinel.vocabulary.overrides import Anchor

PAUSED = "the run is paused: sentinel watches and pages, and does not act"
KILL_FILE = "the KILL file is in the state folder: a job would stop after its first step; take it away first"

ELSEWHERE = "[launcher] kind is 'elsewhere': sentinel watches the job and does not act on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be done and why; printing it is the dry run."""

    actions: tuple[Action, ...] = ()
    decision: Rollback | None = None  # made by this plan, and to be recorded before any of its actions
    wait: Wait | None = None  # begun by this plan, and to be recorded: nothing is done but to watch
    skip: Skip | None = None  # a rung that can't be carried out, to be recorded: then the next rung is decided
    way: Way | None = None  # how the decision restarts the training, and why so; None where it does not
    gives_up: str | None = None  # why a decision is not carried out in place after all, to be recorded
    bisects: bool = False  # whether the cause is to be asked for first, by the incident's bisect
    refusal: str | None = None  # why nothing is done; a sentence. Then there are no actions.
    waits: bool = False  # whether the refusal passes by itself (a cooldown) or by a person's word (pause)
    reason: str = ""


def plan_rollback(decision: Rollback, facts: Facts, policy: Policy) -> Plan:
    """The actions that are still missing to carry the decision out: first the old job is stopped, or its trainer is
    parked, then files are moved. Empty once the decision's own job runs or has run: the files that it writes must not
    be moved."""
    ours, incident = decision.id, decision.overrides.incident
    if facts.jobs.elsewhere:
        return Plan(refusal=ELSEWHERE, waits=True)
    if (why := hindered(facts.liveness, except_for=ours) or elsewhere(decision, facts.folders.place)) is not None:
        return Plan(refusal=why, waits=True)
    others = tuple(w.id for w in facts.jobs.writers if w.rollback != ours)
    same_processes = decision.in_place or decision.resumed  # what they start since names this rollback, and is theirs
    alive = len(others) < len(facts.jobs.writers) and not same_processes
    carried_out = ours in facts.started_rollbacks or alive
    if (others or not carried_out) and (begun := _left_running(decision, facts)) is not None:
        return begun
    if carried_out:
        stop = (StopJob(others, except_for=ours),) if alive and others else ()  # the old job was requeued meanwhile
        return _carried_out(decision, facts, policy, stop)
    no_restart = no_start(facts, policy, ours) if decision.restart else None  # before anything is stopped
    if (blocked := _target_in_doubt(decision, facts) or no_restart) is not None:
        return blocked
    if decision.in_place:
        return _in_place(decision, facts, policy)
    if not others and (why := settles(facts.liveness, except_for=ours)) is not None:
        return Plan(refusal=why, waits=True)
    actions: list[Action] = []
    if decision.restart and facts.jobs.start.prepares and ours not in facts.jobs.start.prepared:
        actions.append(PrepareJob(incident, ours, decision.overrides if facts.jobs.start.rewrites_script else None))
    if others:
        actions.append(StopJob(others))
    actions += _of_files(decision, facts)
    if decision.restart:
        if (spent := _starts_spent(decision, policy)) is not None:
            return spent
        actions.append(StartJob(incident, ours))
    return Plan(actions=tuple(actions), reason=f"carry out {ours}: {decision.rung}{_verified(decision, facts)}")


def _in_place(decision: Rollback, facts: Facts, policy: Policy) -> Plan:
    """The same between Park and Resume, in place of the job's stop and start. A trainer that was resumed writes: until
    it has reported itself nothing is moved."""
    ours, standing = decision.id, stage_of(decision, facts, policy)
    if standing.stage is Stage.LOST:
        lost = standing.why
        if decision.on_disk is not None:
            lost += f"; {decision.target_tag} is lost with it: the target is {decision.on_disk.tag or 'scratch'}"
        return Plan(gives_up=lost, reason=f"{ours} goes on by a new job: {lost}")
    if standing.stage is Stage.RESUMED:
        return Plan(reason=standing.why)
    if standing.stage is Stage.PARKED and (why := settles(facts.liveness, except_for=ours)) is not None:
        return Plan(refusal=why, waits=True)
    if (spent := _starts_spent(decision, policy)) is not None:
        return spent
    attempt, actions = decision.after_attempt or 0, list[Action]()
    if standing.stage is Stage.PARKS:
        actions.append(Park(attempt, ours, deadline_unix_s(decision, facts, policy)))
    actions += _of_files(decision, facts)
    actions.append(Resume(attempt, ours, decision.target_tag, decision.target_step))
    return Plan(
        actions=tuple(actions), reason=f"carry out {ours} in place: {decision.rung}{_verified(decision, facts)}"
    )


def _starts_spent(decision: Rollback, policy: Policy) -> Plan | None:
    if decision.starts < policy.start_budget:
        return None
    return Plan(refusal=f"the job was started {decision.starts} times for {decision.id} and never reported a start")


def elsewhere(decision: Rollback, now: Place | None) -> str | None:
    """That it was decided for another save folder, as a sentence; None where it was for this one, or that is not known.
    Checkpoints of two folders may have the same names."""
    if decision.place is None or now is None or not decision.place.is_other(now):
        return None
    decided_for = f"{decision.id} was decided for the checkpoints in {decision.place.path}"
    return f"{decided_for}, and [run] checkpoints names {now.path}"


def _verified(decision: Rollback, facts: Facts) -> str:
    """What the target's verification has read, and when."""
    target = None if decision.saved_tag is None else facts.folders.checkpoint(decision.saved_tag)
    known = None if target is None else target.verification
    return "" if known is None else f"; {decision.saved_tag} is verified: {known.sentence}"


def begun_since(
    facts: Facts, after_attempt: int | None, known_jobs: Iterable[str], *, own: str | None = None
) -> tuple[str, bool] | None:
    """What began after a decision and not for it, and whether it has reported its start; None where nothing did.

    A person started it, who may have repaired the run by hand. `after_attempt` and `known_jobs` are the newest attempt
    and the jobs at the decision. What the scheduler begins again of these jobs (a requeue, an array's next task) is the
    old job still. `own`: the rollback whose job is the decision's own.
    """
    later = [a for a in facts.liveness.attempts if after_attempt is not None and a.number > after_attempt]
    before = [a.job_id for a in facts.liveness.attempts if a not in later and a.job_id is not None]
    old = {_group(job) for job in (*known_jobs, *before)}
    for attempt in later:
        over = attempt.finished or (attempt.process_state is not None and attempt.process_state.life is Life.GONE)
        if not attempt.reported and not over:
            return f"attempt {attempt.number}", False
        of_old_job = attempt.job_id is not None and _group(attempt.job_id) in old
        if attempt.reported and not (own is not None and attempt.rollback == own) and not of_old_job:
            return f"attempt {attempt.number}", True
    others = [w.id for w in facts.jobs.writers if own is None or w.rollback != own]
    if after_attempt is not None and others and not any(_group(job) in old for job in others):
        return others[0], True
    return None


def _group(job: str) -> str:
    """Of `7_2` and `7_[3-4%1]` the array, of which a requeue is a task as well; of any other its own name."""
    return job.partition("_")[0]


def _left_running(decision: Rollback, facts: Facts) -> Plan | None:
    jobs = (*decision.known_jobs, *decision.to_stop)
    if (begun := begun_since(facts, decision.after_attempt, jobs, own=decision.id)) is None:
        return None
    what, reported = begun
    if not reported:
        return Plan(
            refusal=f"{what} began after {decision.id} was decided, and has not reported its start yet", waits=True
        )
    return Plan(
        refusal=f"{what} began after {decision.id} was decided, and was not started for it: it is left running, and "
        f"{decision.id} is not completed"
    )


def _of_files(decision: Rollback, facts: Facts) -> Iterator[Action]:
    """Back to the target: later checkpoints, `latest`, what was logged after it, and what the restart is to apply."""
    ours, incident = decision.id, decision.overrides.incident
    later = [c for c in facts.folders.checkpoints if c.global_step > decision.target_step and not c.only_pinned]
    if later:
        yield QuarantineCheckpoints(tuple(c.tag for c in later), incident, ours)
    if facts.folders.latest_tag != decision.saved_tag or facts.folders.disagreement is not None:
        by_newest = facts.folders.by_newest
        yield PointLatest(decision.saved_tag, decision.saved_step, incident, ours, by_newest)
    yield from _of_logs(decision, facts)
    if facts.folders.overrides != decision.overrides:
        yield WriteOverrides(decision.overrides)


def _carried_out(decision: Rollback, facts: Facts, policy: Policy, stop: tuple[StopJob, ...]) -> Plan:
    ours, reason = decision.id, f"{decision.id} has been carried out"
    if ours not in facts.jobs.incomplete:
        return Plan(actions=stop, reason=reason)
    if not stop and (refused := no_start(facts, policy, ours)) is not None:
        return refused
    return Plan(actions=(*stop, StartJob(decision.overrides.incident, ours)), reason=reason)


def _of_logs(decision: Rollback, facts: Facts) -> Iterator[Action]:
    """What was logged after the target is kept apart from what the restart will log."""
    at, incident, ours = decision.overrides.anchor, decision.overrides.incident, decision.id
    if _tensorboard_is_past(at, facts):
        yield CutTensorBoard(at, incident, ours, facts.folders.tensorboard_git)
    if facts.folders.wandb is not None and ours not in facts.folders.wandb.branched:
        yield BranchWandb(facts.folders.wandb.how, decision.target_step, incident, ours)


def _tensorboard_is_past(at: Anchor, facts: Facts) -> bool:
    past = facts.folders.tensorboard_past is not None and facts.folders.tensorboard_past > at.global_step
    samples = 0 if at.global_step == 0 else at.consumed_samples
    return past or (samples is not None and (facts.folders.tensorboard_samples or 0) > samples)


def _target_in_doubt(decision: Rollback, facts: Facts) -> Plan | None:
    if decision.saved_tag is None:
        return None
    target = facts.folders.checkpoint(decision.saved_tag)
    if target is None or not target.complete or target.verified is False:
        why = target.problem if target is not None else "it is not there"
        return Plan(refusal=f"the target {decision.saved_tag} can't be trusted any more: {why}")
    return not_yet_verified(target)


def not_yet_verified(target: Checkpoint | None) -> Plan | None:
    """The plan to bring the target back, or to read it whole, where that is still to be done."""
    if target is not None and target.only_pinned:
        return Plan(actions=(RestorePinned(target.tag),), reason=f"of {target.tag}, the target, only its pin is left")
    if target is not None and target.verified is None:
        return Plan(actions=(VerifyCheckpoint(target.tag),), reason=f"{target.tag} is the target, not yet verified")
    return None


def on_hold(facts: Facts) -> Plan | None:
    """The refusal to act while the run is paused or its KILL file exists; None otherwise."""
    person = facts.person
    return (
        Plan(refusal=PAUSED if person.paused else KILL_FILE, waits=True) if person.paused or person.kill_file else None
    )


def no_room(facts: Facts) -> Plan | None:
    """The refusal to restart a job whose saves would not fit on the disk; None when they would."""
    why = facts.folders.room_problem
    return None if why is None else Plan(refusal=f"the coming saves would find no room: {why}", waits=True)


def no_start(facts: Facts, policy: Policy, rollback: str | None) -> Plan | None:
    """The refusal to start the job now, for reasons other than the budgets; None when it may be started."""
    if facts.liveness.overlap is not None:
        return Plan(refusal=f"nothing is started while two attempts train: {facts.liveness.overlap}", waits=True)
    if (lost := facts.jobs.lost.get(rollback)) is not None:
        return Plan(refusal=f"{lost}: it is not submitted again")
    within = [at for at in facts.liveness.starts_unix_s if at > facts.now_unix_s - 3600.0]
    if len(within) >= policy.max_starts_per_hour:
        return Plan(
            refusal=f"sentinel has started the job {len(within)} times in the last hour, and [policy] "
            f"max_starts_per_hour is {policy.max_starts_per_hour}",
            waits=True,
        )
    return None
