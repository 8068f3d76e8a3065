"""plan_recovery(facts, policy) -> Plan: the next rung and its target, as a decision to record, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.mitigation import changes, not_applied, overrides_for
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import Target, choose_target
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident, OnDisk, Rollback, rollback_id
from sentinel.plan.incident.other_rungs import Skip, Wait
from sentinel.plan.observation import Life
from sentinel.plan.restart.forecast import gpu_hours, lost_so_far, lost_steps
from sentinel.plan.restart.in_place.held import held_in_memory
from sentinel.plan.restart.in_place.way import Way, way_of
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.restart.rollback import ELSEWHERE, Plan, no_room, not_yet_verified, on_hold, plan_rollback
from sentinel.plan.starts.proof import unreported
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Overrides


def plan_recovery(facts: Facts, policy: Policy) -> Plan:
    """What to do about a divergence, given what is true now. A plan without actions and refusal has nothing to do."""
    incident, verdict = facts.open_incident, facts.verdict
    if incident is None:
        return Plan(reason=f"no incident is open: {verdict.reason}")
    if incident.current is not None:
        return plan_rollback(incident.current, facts, policy)
    if (wait := incident.waiting) is not None:
        return Plan(reason=f"{wait.rung!r} watches until step {wait.until_step} whether the run recovers")
    if verdict.kind is not VerdictKind.DIVERGED and not incident.rollbacks:
        return Plan(reason=f"the run has not diverged: {verdict.reason}")
    return decide_rung(incident, facts, policy)


def rungs_left(incident: Incident, policy: Policy) -> tuple[Rung, ...]:
    """The rungs for the incident's instability that were not tried yet, by their names: the ladder may have been edited
    since the incident began. Those come last that the incidents before, whose recovery did not hold, were restarted by;
    of them the one first that was used the longest ago."""
    ladder, tried, left = policy.ladder_for(incident.instability), list(incident.tried), []
    names = [rung.name for rung in ladder]
    by_last_use = sorted(range(len(ladder)), key=lambda place: _last_use(place, names, incident.tried_before))
    for rung in (ladder[place] for place in by_last_use):
        if rung.name in tried:
            tried.remove(rung.name)
        else:
            left.append(rung)
    return tuple(left)


def _last_use(place: int, names: Sequence[str], used: Sequence[str]) -> int:
    """Where the rung stands last among the used ones, -1 where it does not; rungs of one name were used in turn."""
    same = [other for other, name in enumerate(names) if name == names[place]]
    uses = [at for at, name in enumerate(used) if name == names[place]]
    return max(uses[same.index(place) :: len(same)], default=-1)


def decide_rung(incident: Incident, facts: Facts, policy: Policy) -> Plan:
    """The next rung and its target, as a decision to record; or a checkpoint to verify first; or a refusal. A rung that
    only watches is a wait to record: it has no actions, and no budget stands against it. A rung that can't be carried
    out is a skip to record; the next rung is decided once it is recorded."""
    if (refused := _nothing_decided_now(facts, policy)) is not None:
        return refused
    ladder = policy.ladder_for(incident.instability)
    if policy.ladder and not ladder:
        return Plan(refusal="the ladder has no rung for this incident: each is for another instability")
    if not (left := rungs_left(incident, policy)):
        tried, left_out = len(incident.tried) - len(incident.skips), len(incident.skips)
        return Plan(
            refusal=f"the ladder's {len(ladder)} rungs are used up: {tried} tried without recovery, "
            f"{left_out} could not be carried out"
        )
    rung = left[0]
    if rung.page:
        return Plan(refusal=f"rung {rung.name!r} asks for a person; its hypothesis: {rung.hypothesis}")
    if rung.wait_steps is not None:
        begin = facts.readings.last_step if facts.readings.last_step is not None else incident.alarm_step or 0
        until = begin + rung.wait_steps
        wait = Wait(rung=rung.name, hypothesis=rung.hypothesis, from_step=begin, until_step=until)
        return Plan(wait=wait, reason=f"watch until step {until} whether the run recovers by itself")
    if sum(len(i.rollbacks) for i in facts.incidents) >= policy.rollback_budget:
        return Plan(refusal=f"rollback budget of {policy.rollback_budget} is spent")
    if (refused := no_room(facts)) is not None:
        return refused
    if rung.bisect:
        return plan_found(rung, incident, facts, policy)
    if (way := way_of(facts, policy, rung=rung.restart)).refused:
        return Plan(refusal=f'[policy] restart is "in_place": {way.why}')
    in_memory = held_in_memory(facts) if way.in_place and not facts.folders.by_newest else ()
    target = choose_target(incident, rung, facts.folders, facts.readings, policy, in_memory=in_memory)
    try:
        decision = _decision(incident, rung, target, way, facts, policy)
    except ConfigError as error:
        return skipped(rung, str(error))
    return _checked(decision, target, rung, incident, facts, policy)


def plan_found(rung: Rung, incident: Incident, facts: Facts, policy: Policy) -> Plan:
    """The plan of what follows from the incident's bisect: that bisect first, where it has not come to its end."""
    found, ours = facts.on_demand.bisect, rollback_id(incident.id, len(incident.rollbacks) + 1)
    if found is None or not found.over:
        if policy.mode != "act":
            asked = f"`sentinel bisect {incident.id}`"
            return Plan(
                refusal=f"rung {rung.name!r} needs {asked}: a person starts it in mode {policy.mode}", waits=True
            )
        return Plan(bisects=True, reason=found.reason if found is not None else "the cause is asked for first")
    if found.needs_person:
        return Plan(refusal=f"rung {rung.name!r}: a machine has to be left out: {found.reason}")
    there = facts.folders.checkpoint(found.tag) if found.tag is not None else None
    gone = found.tag is not None and (there is None or not there.complete or there.verified is False)
    if found.overrides is None or gone:
        return skipped(
            rung, f"{found.tag}, from which the bisect began, is not whole any more" if gone else found.reason
        )
    once = found.overrides.once
    named = replace(found.overrides, rollback=ours, once=None if once is None else replace(once, id=ours))
    target = Target(tag=found.tag, global_step=found.global_step, reason=f"the bisect began there: {found.reason}")
    way, of_rung = way_of(facts, policy, rung=rung.restart), {"rung": rung.name, "hypothesis": found.reason}
    decision = decision_of(named, incident.baseline, facts, **of_rung, target=target, way=way)
    return _checked(decision, target, rung, incident, facts, policy)


def _checked(decision: Rollback, target: Target, rung: Rung, incident: Incident, facts: Facts, policy: Policy) -> Plan:
    """The plan of the decision, where the trainer makes its changes, its target is whole and it is not too dear."""
    if decision.restart and (unapplied := unapplied_by(decision.overrides, incident.baseline, facts)) is not None:
        return skipped(rung, unapplied)
    saved = decision.saved_tag
    if (first := not_yet_verified(facts.folders.checkpoint(saved) if saved else None)) is not None:
        return first
    if (refused := _too_dear(decision, facts, policy)) is not None:
        return refused
    plan = plan_rollback(decision, facts, policy)
    return plan if plan.refusal is not None else Plan(actions=plan.actions, decision=decision, reason=target.reason)


def unapplied_by(overrides: Overrides, baseline: Baseline, facts: Facts) -> str | None:
    """What of the overrides the trainer does not make, as a sentence; None where it makes all."""
    return not_applied(overrides, baseline, facts.settings, facts.jobs.start)


def skipped(rung: Rung, reason: str) -> Plan:
    skip = Skip(rung=rung.name, hypothesis=rung.hypothesis, reason=reason)
    return Plan(skip=skip, reason=f"rung {rung.name!r} is skipped: {reason}")


def _decision(incident: Incident, rung: Rung, target: Target, way: Way, facts: Facts, policy: Policy) -> Rollback:
    made = _to(target, incident, rung, way, facts, policy)
    if target.on_disk is not None:
        made.on_disk = on_disk_of(_to(target.on_disk, incident, rung, way, facts, policy))
    return made


def on_disk_of(decision: Rollback) -> OnDisk:
    """The same decision, made for the checkpoint that takes a state's place which is lost."""
    return OnDisk(
        tag=decision.target_tag,
        global_step=decision.target_step,
        overrides=decision.overrides,
        changes=decision.changes,
        lost_steps=decision.lost_steps,
        lost_gpu_hours=decision.lost_gpu_hours,
        unconfirmed=decision.unconfirmed,
    )


def _to(target: Target, incident: Incident, rung: Rung, way: Way, facts: Facts, policy: Policy) -> Rollback:
    anchor = Anchor(global_step=0, consumed_samples=0, consumed_tokens=0)
    if target.tag is not None:
        anchor = facts.readings.anchor(target.global_step)
    overrides = overrides_for(
        rung,
        incident.baseline,
        incident=incident.id,
        rollback=rollback_id(incident.id, len(incident.rollbacks) + 1),
        anchor=anchor,
        new_seed=facts.settings.new_seed(incident.baseline),
        onset_past=onset_past(incident, policy),
    )
    of_rung = {"rung": rung.name, "hypothesis": rung.hypothesis}
    return decision_of(overrides, incident.baseline, facts, **of_rung, target=target, way=way)


def decision_of(
    overrides: Overrides,
    baseline: Baseline,
    facts: Facts,
    *,
    rung: str,
    hypothesis: str,
    target: Target,
    way: Way | None,
) -> Rollback:
    """The rollback to the target with these overrides: what it changes, loses, and what can't be confirmed of it.
    `way`: how the training is started again; None where a person starts it."""
    lost, unconfirmable = lost_steps(target.global_step, facts), tuple(unreported(overrides, baseline))
    if overrides.once is not None and facts.jobs.start.rewrites_script:  # it keeps no record of what it did once
        unconfirmable += (f"one-shot changes of {overrides.once.id}",)
    return Rollback(
        id=overrides.rollback,
        rung=rung,
        hypothesis=hypothesis,
        target_tag=target.tag,
        target_step=target.global_step,
        overrides=overrides,
        changes=changes(overrides, baseline),
        decided_unix_s=facts.now_unix_s,
        lost_steps=lost,
        lost_gpu_hours=gpu_hours(lost, facts),
        unconfirmed=unconfirmable,
        in_script=facts.jobs.start.rewrites_script,
        restart=way is not None,
        in_place=way is not None and way.in_place,
        after_attempt=max((a.number for a in facts.liveness.attempts), default=0),
        known_jobs=tuple(w.id for w in facts.jobs.writers),
        place=facts.folders.place,
    )


def onset_past(incident: Incident, policy: Policy) -> int | None:
    """The position in the data `margin_steps` past the late end of the onset; None where samples are not reported."""
    if incident.onset_samples is None or incident.batch_samples is None:
        return None
    return incident.onset_samples + policy.margin_steps * incident.batch_samples


def has_not_healed(wait: Wait, facts: Facts) -> str | None:
    """Why the wait is over without having helped, as a sentence; None while it lasts."""
    if not facts.jobs.writers and life_of(facts.liveness).life is Life.GONE:
        return f"the job is gone before step {wait.until_step}: {facts.verdict.reason}"
    last = facts.readings.last_step
    if facts.verdict.kind is VerdictKind.DIVERGED and last is not None and last >= wait.until_step:
        return f"still diverged at step {last}: {facts.verdict.reason}"
    return None


def _nothing_decided_now(facts: Facts, policy: Policy) -> Plan | None:
    if facts.jobs.elsewhere:
        return Plan(refusal=ELSEWHERE, waits=True)
    if not facts.jobs.known:  # the job's script is a part of what is decided upon
        return Plan(refusal=f"job state unknown: {facts.jobs.why_unknown}", waits=True)
    if (refused := on_hold(facts)) is not None:
        return refused
    span = policy.quiet_at(facts.minute_of_day) if facts.minute_of_day is not None else None
    if span is not None:
        return Plan(refusal=f"these are quiet hours ({span}): nothing is done without a person", waits=True)
    decided = [r.decided_unix_s for i in facts.incidents for r in i.rollbacks]
    left_s = policy.cooldown_s - (facts.now_unix_s - max(decided)) if decided else 0.0
    if left_s > 0:
        return Plan(refusal=f"the last rollback was decided just now: {left_s:.0f} s of cooldown are left", waits=True)
    return None


def gpu_hours_left(facts: Facts, policy: Policy) -> float | None:
    """Of the budget; None where there is no limit."""
    budget = policy.gpu_hours_budget
    return None if budget is None else budget - sum(i.spent_gpu_hours for i in facts.incidents)


def _too_dear(decision: Rollback, facts: Facts, policy: Policy) -> Plan | None:
    if lost_so_far(facts.incidents) + decision.lost_steps > policy.lost_steps_budget:
        return Plan(
            refusal=f"rolling back to step {decision.target_step} would lose {decision.lost_steps} steps, more "
            f"than is left of the budget of {policy.lost_steps_budget}"
        )
    left, cost = gpu_hours_left(facts, policy), decision.lost_gpu_hours
    if left is None or cost is None or cost <= left:
        return None
    budget = policy.gpu_hours_budget
    return Plan(
        refusal=f"the rollback would cost {cost:.3g} GPU-hours, and {left:.3g} are left of the budget of {budget:g}"
    )
