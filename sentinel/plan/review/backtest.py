"""What would have been done about a divergence that a log records, under a policy of today: no run, only its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sentinel.judge.analysis.departures import FirstMoved
from sentinel.judge.events import Event as Divergence
from sentinel.judge.history import Attempt
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import latest_targets
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import OnsetReadings, baseline_of
from sentinel.plan.incident.events import fold, opened, skipped, waiting
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.incident.log_events import IncidentEvent, WaitOver
from sentinel.plan.observation import Checkpoint
from sentinel.plan.restart.decision import decide_rung


@dataclass(frozen=True, slots=True, kw_only=True)
class WouldDo:
    """What the ladder comes to at one divergence."""

    at_step: int  # the step at which it was known
    saves: Literal["named", "assumed", "unknown"]
    """By the record; one in each `save_every` steps; neither: then the target is the latest that a save may be of."""

    passed: tuple[str, ...]  # rungs that watch, or that could not be carried out, each with its reason
    decision: Rollback | None  # None where it ends with a person
    reason: str


def would_do(
    divergence: Divergence,
    lineage: Sequence[Attempt],
    policy: Policy,
    *,
    save_every: int | None,
    step_time_s: float | None,
    moved_first: FirstMoved | None = None,
) -> WouldDo:
    """The first rung that would have changed something, if those that only watch had not helped. `lineage`: the
    attempts up to the one that diverged, the oldest first. Saves: those that the record names up to the alarm; where it
    names none at all, one in each `save_every` steps. Taken for granted, since no record shows it: every save was whole
    and sound, the job could be stopped, and no incident came before."""
    alarm = divergence.verdict_step
    started = next((attempt.started for attempt in reversed(lineage) if attempt.started is not None), None)
    verdict = Verdict(
        kind=VerdictKind.DIVERGED,
        reason=divergence.reason,
        global_step=alarm,
        onset_range=divergence.onset_range,
        alarm_step=alarm,
    )
    baseline = baseline_of(started)
    saves, steps = saved_steps(lineage, alarm, save_every)
    if saves == "unknown":
        steps = latest_targets(baseline, divergence.onset_range[0], policy)
    onset = OnsetReadings(moved_first=moved_first)
    log: list[IncidentEvent] = [
        _at(opened(1, 1, baseline, None, reason=divergence.reason, verdict=verdict, onset=onset))
    ]
    facts = Facts(now_unix_s=0.0, verdict=verdict).changed(
        checkpoints=tuple(
            Checkpoint(tag=f"global_step{step}", global_step=step, complete=True, verified=True) for step in steps
        ),
        last_step=alarm,
        trained_to=alarm,
        step_time_s=step_time_s,
        world_size=started.world_size if started is not None else None,
        baseline=baseline,
        applies=frozenset(started.applies) if started is not None and started.applies is not None else None,
        trainer=started.trainer if started is not None else None,
        seeds_used=frozenset({baseline.seed} if baseline.seed is not None else ()),
    )
    passed: list[str] = []
    while True:
        (incident,) = incidents = fold(log)
        plan = decide_rung(incident, replace(facts, incidents=incidents), replace(policy, quiet_hours=(), mode="act"))
        if (wait := plan.wait) is not None:
            passed.append(f"{wait.rung!r} would have watched until step {wait.until_step}")
            over = WaitOver(incident=incident.id, rung=wait.rung, reason="it had not recovered")
            log += [_at(waiting(incident.id, wait)), _at(over)]
        elif (skip := plan.skip) is not None:
            passed.append(f"{skip.rung!r} could not have been carried out: {skip.reason}")
            log.append(_at(skipped(incident.id, skip)))
        else:
            why = plan.refusal or ("a bisect would have asked for the cause" if plan.bisects else plan.reason)
            return WouldDo(at_step=alarm, saves=saves, passed=tuple(passed), decision=plan.decision, reason=why)


def saved_steps(
    lineage: Sequence[Attempt], until: int, save_every: int | None
) -> tuple[Literal["named", "assumed", "unknown"], Sequence[int]]:
    """How the saves are known, and the steps of those up to that step, ascending. What an attempt saved
    after the step that its successor resumed from is no save of the run any more."""
    named: set[int] = set()
    for attempt in lineage:
        if attempt.started is not None and attempt.started.resumed_from is not None:
            named = {step for step in named if step <= attempt.started.resumed_from}
        named.update(saved.global_step for saved in attempt.saved)
    if named:
        return "named", sorted(step for step in named if step <= until)
    return ("unknown", ()) if save_every is None else ("assumed", range(save_every, until + 1, save_every))


def _at(event: IncidentEvent) -> IncidentEvent:
    return replace(event, time_unix_s=0.0)
