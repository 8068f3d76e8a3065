"""A rung that only watches: when it begins, and when it has not helped."""

from __future__ import annotations

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.incident import Incident, Wait
from sentinel.plan.ladder import Rung
from sentinel.plan.liveness import life_of
from sentinel.plan.observation import RunState
from sentinel.plan.witnesses import Life

__all__ = ["begin_wait", "has_not_healed"]


def begin_wait(rung: Rung, steps: int, incident: Incident, run: RunState) -> Wait:
    """From the run's last step on."""
    begin = run.last_step if run.last_step is not None else incident.alarm_step or 0
    return Wait(rung=rung.name, hypothesis=rung.hypothesis, from_step=begin, until_step=begin + steps)


def has_not_healed(wait: Wait, verdict: Verdict, run: RunState) -> str | None:
    """Why the wait is over without having helped, as a sentence; None while it lasts."""
    if not run.jobs.writers and life_of(run).life is Life.GONE:
        return f"the job is gone before step {wait.until_step}: {verdict.reason}"
    if verdict.kind is VerdictKind.DIVERGED and run.last_step is not None and run.last_step >= wait.until_step:
        return f"still diverged at step {run.last_step}: {verdict.reason}"
    return None
