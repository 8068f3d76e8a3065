"""What to do about a job that is gone, or hangs: a crash is not a divergence."""

from __future__ import annotations

from collections.abc import Sequence

from sentinel.plan.actions import PointLatest, PrepareJob, StartJob, StopJob, VerifyCheckpoint
from sentinel.plan.liveness import hindered
from sentinel.plan.observation import Checkpoint, RunState
from sentinel.plan.policy import Policy
from sentinel.plan.rollback import KILL_FILE, PAUSED, Plan, no_start

__all__ = ["plan_hang", "plan_restart"]


def plan_restart(run: RunState, policy: Policy, *, restarts_spent: int, hung: bool = False) -> Plan:
    """What to do about a job that is gone without a word: start it again, from the last checkpoint that is whole.

    A crash is not a divergence: nothing is rolled back, no rung is spent. `hung`: it was stopped because it hung.
    """
    if not (policy.restart_on_hang if hung else policy.restart_on_crash):
        return Plan(refusal="restart_on_crash is off, so a person has to start it again", waits=True)
    if (refused := _restarts_not(run, policy, restarts_spent)) is not None:
        return refused
    if run.jobs.writers:
        return Plan(reason="something of the job is still alive")
    incident = run.open_incident
    current = incident.current if incident else None
    rollback = run.overrides.rollback if run.overrides else None
    whole = [c for c in run.checkpoints if c.complete and c.verified is not False and not c.only_pinned]
    start = StartJob(
        incident.id if incident else None,
        current.id if current else rollback,
        follow_up=_has_saved_since(run, whole),
    )
    if (refused := no_start(run, policy, start.rollback)) is not None:
        return refused
    if not whole:
        return Plan(actions=(start,), reason="the job is gone, before its first checkpoint")
    last = whole[-1]
    if last.verified is None:
        return Plan(actions=(VerifyCheckpoint(last.tag),), reason=f"{last.tag} is checked before the job is restarted")
    if run.latest_tag == last.tag and run.disagreement is None:
        return Plan(actions=(start,), reason=f"the job is gone: it goes on from {last.tag}")
    where = incident.id if incident else "restart"
    point = PointLatest(last.tag, last.global_step, where, rollback or "restart")
    return Plan(
        actions=(point, start),
        reason=f"{run.disagreement or f'`latest` says {run.latest_tag!r}'}; {last.tag} is the last that is whole",
    )


def _has_saved_since(run: RunState, whole: Sequence[Checkpoint]) -> bool:
    """Whether the rollback in force has saved a checkpoint of its own."""
    return run.overrides is not None and bool(whole) and whole[-1].global_step > run.overrides.anchor.global_step


def plan_hang(run: RunState, policy: Policy, *, restarts_spent: int) -> Plan:
    """What to do about a job that lives and does nothing: keep its stacks and stop it; then it is gone, as in a crash.

    What waits behind it is stopped with it, and comes back with it: else it would begin from a `latest` that nobody
    has looked at.
    """
    if not policy.restart_on_hang:
        return Plan(refusal="restart_on_hang is off, so a person has to stop it", waits=True)
    if (refused := _restarts_not(run, policy, restarts_spent)) is not None:
        return refused
    if (refused := no_start(run, policy, None)) is not None:
        return refused
    if run.jobs.prepares and not run.jobs.restart_prepared:
        return Plan(actions=(PrepareJob(None, None),), reason="its restart is prepared")
    stop = StopJob(tuple(w.id for w in run.jobs.writers), keep_stacks=True)
    return Plan(actions=(stop,), reason="it hangs: it is stopped, and started again from its last whole checkpoint")


def _restarts_not(run: RunState, policy: Policy, restarts_spent: int) -> Plan | None:
    if run.paused or run.kill_file:
        return Plan(refusal=PAUSED if run.paused else KILL_FILE, waits=True)
    if (why := hindered(run)) is not None:
        return Plan(refusal=why, waits=True)
    if restarts_spent >= policy.start_budget:
        return Plan(refusal=f"the job was started again {restarts_spent} times without getting to a new checkpoint")
    return None
