"""plan_recovery(verdict, run, policy) -> Plan: from what is true now to what has to be done.

The same function makes a plan and resumes one: it looks at the run, not at what was done before. Only the decision
(which rung, which target, which seed) is remembered, by the incident log, so that it is made once.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.actions import (
    Action,
    CutTensorBoard,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    RestorePinned,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)
from sentinel.plan.applicability import not_applied
from sentinel.plan.baseline import Baseline
from sentinel.plan.incident import Incident, Rollback, Skip, Wait, rollback_id
from sentinel.plan.ladder import Rung
from sentinel.plan.liveness import hindered
from sentinel.plan.mitigation import changes, overrides_for
from sentinel.plan.observation import Checkpoint, RunState
from sentinel.plan.policy import Policy
from sentinel.plan.price import gpu_hours, lost_steps
from sentinel.plan.proof import unreported
from sentinel.plan.target import Target, choose_target
from sentinel.plan.wait_rung import begin_wait
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Overrides

__all__ = [
    "KILL_FILE",
    "PAUSED",
    "Plan",
    "decide",
    "no_room",
    "no_start",
    "onset_past",
    "plan_recovery",
    "plan_rollback",
    "skipped",
    "unconfirmable",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be done and why; printing it is the dry run."""

    actions: tuple[Action, ...] = ()
    decision: Rollback | None = None
    """Made by this plan, and to be recorded before any of its actions; None when it was made before."""

    wait: Wait | None = None
    """Begun by this plan, and to be recorded: nothing is done but to watch."""

    skip: Skip | None = None
    """A rung that can't be carried out, to be recorded: then the next rung is decided. Nothing else is done with it."""

    refusal: str | None = None
    """Why nothing is done; a sentence. Then there are no actions."""

    waits: bool = False
    """Whether the refusal passes by itself (a cooldown) or by a person's word (pause): then sentinel waits."""

    reason: str = ""


def plan_recovery(verdict: Verdict, run: RunState, policy: Policy) -> Plan:
    """What to do about a divergence, given what is true now. A plan without actions and refusal has nothing to do."""
    incident = run.open_incident
    if incident is None:
        return Plan(reason=f"no incident is open: {verdict.reason}")
    if incident.current is not None:
        return plan_rollback(incident.current, run, policy)
    if (wait := incident.waiting) is not None:
        return Plan(reason=f"{wait.rung!r} watches until step {wait.until_step} whether the run heals")
    if verdict.kind is not VerdictKind.DIVERGED and not incident.rollbacks:
        return Plan(reason=f"the run has not diverged: {verdict.reason}")
    return decide(incident, run, policy)


def decide(incident: Incident, run: RunState, policy: Policy) -> Plan:
    """The next rung and its target, as a decision to record; or a checkpoint to verify first; or a refusal.

    A rung that only watches is a wait to record: it has no actions, and no budget stands against it. A rung that can't
    be carried out is a skip to record; the next rung is decided once it is recorded.
    """
    if (refused := _waits(run, policy)) is not None:
        return refused
    if incident.tried >= len(policy.ladder):
        tried, left_out = incident.tried - len(incident.skips), len(incident.skips)
        return Plan(
            refusal=f"the ladder's {len(policy.ladder)} rungs are used up: {tried} tried without recovery, "
            f"{left_out} could not be carried out"
        )
    rung = policy.ladder[incident.tried]
    if rung.page:
        return Plan(refusal=f"rung {rung.name!r} asks for a person; its hypothesis: {rung.hypothesis}")
    if rung.wait_steps is not None:
        wait = begin_wait(rung, rung.wait_steps, incident, run)
        return Plan(wait=wait, reason=f"watch until step {wait.until_step} whether the run heals by itself")
    if sum(len(i.rollbacks) for i in run.incidents) >= policy.rollback_budget:
        return Plan(refusal=f"rollback budget of {policy.rollback_budget} is spent")
    if (refused := no_room(run)) is not None:
        return refused
    return _restart(rung, incident, run, policy)


def _restart(rung: Rung, incident: Incident, run: RunState, policy: Policy) -> Plan:
    """The rung's target and overrides as a decision; a skip where it can't be carried out; or what is against it."""
    target = choose_target(incident, rung, run, policy)
    try:
        decision = _decision(incident, rung, target, run, policy)
    except ConfigError as error:
        return skipped(rung, str(error))
    if decision.restart and (unapplied := not_applied(decision.overrides, incident.baseline, run)) is not None:
        return skipped(rung, unapplied)
    if (first := _not_yet_verified(run.checkpoint(target.tag) if target.tag else None)) is not None:
        return first
    if _lost_steps(run) + decision.lost_steps > policy.lost_steps_budget:
        return Plan(
            refusal=f"rolling back to step {target.global_step} would lose {decision.lost_steps} steps, more "
            f"than is left of the budget of {policy.lost_steps_budget}"
        )
    if (refused := _too_dear(decision, run, policy)) is not None:
        return refused
    carried_out = plan_rollback(decision, run, policy)
    if carried_out.refusal is not None:
        return carried_out
    return Plan(actions=carried_out.actions, decision=decision, reason=target.reason)


def skipped(rung: Rung, reason: str) -> Plan:
    """The plan for a rung that can't be carried out: it is recorded as skipped, with the reason, a sentence."""
    return Plan(
        skip=Skip(rung=rung.name, hypothesis=rung.hypothesis, reason=reason),
        reason=f"rung {rung.name!r} is skipped: {reason}",
    )


def plan_rollback(decision: Rollback, run: RunState, policy: Policy) -> Plan:
    """The actions that are still missing to carry the decision out, in the order of rule 4: fence, then act.

    Empty once the decision's own job runs or has run: what it writes is not to be moved.
    """
    ours = decision.id
    incident = decision.overrides.incident
    if (why := hindered(run, spare=ours)) is not None:
        return Plan(refusal=why, waits=True)
    others = tuple(w.id for w in run.jobs.writers if w.rollback != ours)
    alive = len(others) < len(run.jobs.writers)
    if ours in run.started_rollbacks or alive:
        stop = (StopJob(others, spare=ours),) if alive and others else ()  # the old job was requeued meanwhile
        return _carried_out(decision, run, policy, stop)
    if (first := _target_in_doubt(decision, run) or _no_restart(decision, run, policy)) is not None:
        return first
    actions: list[Action] = []
    if decision.restart and run.jobs.prepares and ours not in run.jobs.prepared:
        actions.append(PrepareJob(incident, ours, decision.overrides if run.jobs.rewrites_script else None))
    if others:
        actions.append(StopJob(others))
    if later := tuple(c.tag for c in run.checkpoints if c.global_step > decision.target_step and not c.only_pinned):
        actions.append(QuarantineCheckpoints(later, incident, ours))
    if run.latest_tag != decision.target_tag or run.disagreement is not None:
        actions.append(PointLatest(decision.target_tag, decision.target_step, incident, ours))
    if _tensorboard_is_past(decision.overrides.anchor, run):
        actions.append(CutTensorBoard(decision.overrides.anchor, incident, ours, run.tensorboard_git))
    if run.overrides != decision.overrides:
        actions.append(WriteOverrides(decision.overrides))
    if decision.restart:
        if decision.starts >= policy.start_budget:
            return Plan(refusal=f"the job was started {decision.starts} times for {ours} and never reported a start")
        actions.append(StartJob(incident, ours))
    return Plan(actions=tuple(actions), reason=f"carry out {ours}: {decision.rung}")


def _no_restart(decision: Rollback, run: RunState, policy: Policy) -> Plan | None:
    """As no_start, before anything is stopped: a run that stands still is no better."""
    return no_start(run, policy, decision.id) if decision.restart else None


def _carried_out(decision: Rollback, run: RunState, policy: Policy, stop: tuple[StopJob, ...]) -> Plan:
    """What is still missing where the decision's own job runs or has run."""
    ours = decision.id
    missing: tuple[StartJob, ...] = ()
    if ours in run.jobs.incomplete:
        if not stop and (refused := no_start(run, policy, ours)) is not None:
            return refused
        missing = (StartJob(decision.overrides.incident, ours),)
    return Plan(actions=(*stop, *missing), reason=f"{ours} has been carried out")


def _tensorboard_is_past(at: Anchor, run: RunState) -> bool:
    past = run.tensorboard_past is not None and run.tensorboard_past > at.global_step
    samples = 0 if at.global_step == 0 else at.consumed_samples
    return past or (samples is not None and (run.tensorboard_samples or 0) > samples)


def _target_in_doubt(decision: Rollback, run: RunState) -> Plan | None:
    """What has to be settled about the target before anything moves; None when it is there and whole."""
    if decision.target_tag is None:
        return None
    target = run.checkpoint(decision.target_tag)
    if target is None or not target.complete or target.verified is False:
        why = target.problem if target is not None else "it is not there"
        return Plan(refusal=f"the target {decision.target_tag} can't be trusted any more: {why}")
    return _not_yet_verified(target)


def _not_yet_verified(target: Checkpoint | None) -> Plan | None:
    if target is not None and target.only_pinned:
        return Plan(actions=(RestorePinned(target.tag),), reason=f"of {target.tag}, the target, only its pin is left")
    if target is not None and target.verified is None:
        return Plan(actions=(VerifyCheckpoint(target.tag),), reason=f"{target.tag} is the target, not yet verified")
    return None


def _decision(incident: Incident, rung: Rung, target: Target, run: RunState, policy: Policy) -> Rollback:
    rollback = rollback_id(incident.id, len(incident.rollbacks) + 1)
    if target.tag is None:
        anchor = Anchor(global_step=0, consumed_samples=0, consumed_tokens=0)
    else:
        anchor = run.positions.get(target.global_step, Anchor(global_step=target.global_step))
    overrides = overrides_for(
        rung,
        incident.baseline,
        incident=incident.id,
        rollback=rollback,
        anchor=anchor,
        new_seed=max(run.seeds_used, default=incident.baseline.seed or 0) + 1,
        onset_past=onset_past(incident, policy),
    )
    lost = lost_steps(target.global_step, run)
    return Rollback(
        id=rollback,
        rung=rung.name,
        hypothesis=rung.hypothesis,
        target_tag=target.tag,
        target_step=target.global_step,
        overrides=overrides,
        changes=changes(overrides, incident.baseline),
        decided_unix_s=run.now_unix_s,
        lost_steps=lost,
        lost_gpu_hours=gpu_hours(lost, run),
        unconfirmed=unconfirmable(overrides, incident.baseline, run),
        in_script=run.jobs.rewrites_script,
    )


def onset_past(incident: Incident, policy: Policy) -> int | None:
    """The position in the data `margin_steps` past the late end of the onset; None where samples are not reported."""
    if incident.onset_samples is None or incident.batch_samples is None:
        return None
    return incident.onset_samples + policy.margin_steps * incident.batch_samples


_HOUR_S = 3600.0

PAUSED = "the run is paused: sentinel watches and speaks, and does not act"
KILL_FILE = "the KILL file is in the state folder: a job would stop after its first step; take it away first"


def _waits(run: RunState, policy: Policy) -> Plan | None:
    """What has to pass before anything is decided."""
    if not run.jobs.known:  # the job's script is a part of what is decided upon
        return Plan(refusal=f"job state unknown: {run.jobs.why_unknown}", waits=True)
    if run.paused or run.kill_file:
        return Plan(refusal=PAUSED if run.paused else KILL_FILE, waits=True)
    span = policy.quiet_at(run.minute_of_day) if run.minute_of_day is not None else None
    if span is not None:
        return Plan(refusal=f"these are quiet hours ({span}): nothing is done without a person", waits=True)
    decided = [r.decided_unix_s for i in run.incidents for r in i.rollbacks]
    left_s = policy.cooldown_s - (run.now_unix_s - max(decided)) if decided else 0.0
    if left_s > 0:
        return Plan(refusal=f"the last rollback was decided just now: {left_s:.0f} s of cooldown are left", waits=True)
    return None


def no_room(run: RunState) -> Plan | None:
    """The refusal to restart a job that could not save; None when it could."""
    if run.room_problem is None:
        return None
    return Plan(refusal=f"the coming saves would find no room: {run.room_problem}", waits=True)


def no_start(run: RunState, policy: Policy, rollback: str | None) -> Plan | None:
    """The refusal to start the job now, whatever is left of the budgets; None when it may be started."""
    if run.overlap is not None:
        return Plan(refusal=f"nothing is started while two attempts train: {run.overlap}", waits=True)
    if (lost := run.jobs.lost.get(rollback)) is not None:
        return Plan(refusal=f"{lost}: it is not submitted again")
    within = [at for at in run.starts_unix_s if at > run.now_unix_s - _HOUR_S]
    if len(within) >= policy.max_starts_per_hour:
        return Plan(
            refusal=f"sentinel has started the job {len(within)} times in the last hour, and [policy] "
            f"max_starts_per_hour is {policy.max_starts_per_hour}",
            waits=True,
        )
    return None


def unconfirmable(overrides: Overrides, baseline: Baseline, run: RunState) -> tuple[str, ...]:
    """Names of checks that this trainer will not answer; one that takes options has no record of what it did once."""
    said = tuple(unreported(overrides, baseline))
    once = overrides.once if run.jobs.rewrites_script else None
    return said if once is None else (*said, f"one-shot changes of {once.id}")


def _too_dear(decision: Rollback, run: RunState, policy: Policy) -> Plan | None:
    budget, cost = policy.gpu_hours_budget, decision.lost_gpu_hours
    if budget is None or cost is None:
        return None
    left = budget - sum(r.lost_gpu_hours or 0.0 for i in run.incidents for r in i.rollbacks)
    if cost <= left:
        return None
    return Plan(
        refusal=f"the rollback would cost {cost:.3g} GPU-hours, and {left:.3g} are left of the budget of {budget:g}"
    )


def _lost_steps(run: RunState) -> int:
    return sum(r.lost_steps for i in run.incidents for r in i.rollbacks)
