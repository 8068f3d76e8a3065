"""What to do about a job that is gone, that hangs, or that does not go on with its run: no divergence, any of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import STARTS
from sentinel.plan.incident.log_events import Decided
from sentinel.plan.incident.log_outcomes import Intent
from sentinel.plan.outcome import Outcome, Turn
from sentinel.plan.restart.actions import PointLatest, PrepareJob, StartJob, StopJob, VerifyCheckpoint
from sentinel.plan.restart.liveness import hindered, settles
from sentinel.plan.restart.rollback import Plan, no_start, on_hold
from sentinel.plan.starts.audit import Continued, StartAudit, audits_of

_BACKOFF_S, _BACKOFF_MOST_S = 10.0, 600.0


def restart_turn(facts: Facts, policy: Policy) -> Turn:
    """A job that is gone without a word is started again, where the run's owner wants that."""
    attempt, hung = facts.latest, was_stopped_for_hanging(facts)
    ended = attempt.end_reason if attempt else None
    broken_off = facts.jobs.broken_off  # the trainer has heard a SIGTERM, and it was not a person's
    on_purpose = ended is not None and not ended.startswith("error") and not hung and broken_off is None
    if policy.mode != "act" or on_purpose:
        message = f"{facts.verdict.reason}; waiting for the next attempt"
        if ended == "finished":  # it has reported its planned end, and its account does not close
            why = "it is not started again: a person decides whether to go on from an earlier checkpoint"
            return Turn(reason=message, message=message, down=why, down_within_s=policy.confirm_within_s)
        down = None if on_purpose else f"mode is {policy.mode}, so sentinel does not start it"
        return Turn(reason=message, message=message, down=down, down_within_s=policy.confirm_within_s)
    return _turn(plan_restart(facts, policy, restarts_spent=fruitless_starts(facts), hung=hung), facts)


def hang_turn(facts: Facts, policy: Policy) -> Turn:
    """A job that lives and makes no step is stopped, where the run's owner wants that."""
    why = facts.verdict.reason
    if policy.mode != "act":
        return Turn(reason=why, message=why)
    if facts.own.silent_s < facts.liveness.stalled_after_s:  # Prometheus's clock may be wrong
        message = f"{why}; it is stopped once this watch has itself waited for as long"
        return Turn(reason=message, message=message)
    return _turn(plan_hang(facts, policy, restarts_spent=fruitless_starts(facts)), facts)


def _turn(plan: Plan, facts: Facts) -> Turn:
    message = f"{facts.verdict.reason}; {plan.reason if plan.refusal is None else plan.refusal}"
    if plan.refusal is not None:
        down = None if facts.person.paused or facts.person.kill_file else plan.refusal  # it is down by a person's word
        outcome = None if plan.waits else Outcome.PERSON_NEEDED
        return Turn(reason=message, message=message, down=down, outcome=outcome)
    if not plan.actions:
        return Turn(reason=plan.reason)
    return Turn(reason=message, message=message, actions=plan.actions[:1])


def was_stopped_for_hanging(facts: Facts) -> bool:
    """Whether sentinel has stopped the newest attempt's job, since it hung."""
    newest = facts.latest.number if facts.latest else None
    stopped = (e for e in facts.events if isinstance(e, Intent) and e.action.details.get("keep_stacks"))
    return any(e.newest_attempt == newest for e in stopped)


def fruitless_starts(facts: Facts) -> int:
    """Starts of the job since one of them was seen to save a checkpoint, or a rollback was decided. What a trainer
    saves that was there before is no progress of theirs: an attempt counts for the last start before it. By attempts
    and the log's order: the trainer's clock and the daemon's may differ by minutes."""
    begun_after: list[float] = []
    for event in facts.events:
        if isinstance(event, Decided):
            begun_after.clear()
        elif isinstance(event, Intent) and event.action.kind in STARTS:
            begun_after.append(event.newest_attempt or 0)
    saved = [attempt.number for attempt in facts.readings.journals if attempt.saved]
    spans = pairwise([*begun_after, math.inf])
    fruitful = [n for n, (after, last) in enumerate(spans, 1) if any(after < number <= last for number in saved)]
    return len(begun_after) - max(fruitful, default=0)


def plan_restart(facts: Facts, policy: Policy, *, restarts_spent: int, hung: bool = False) -> Plan:
    """What to do about a job that is gone without a word: start it again, from the last checkpoint that is whole. A
    crash is not a divergence: nothing is rolled back, no rung is spent. `hung`: it was stopped because it hung."""
    if not (policy.restart_on_hang if hung else policy.restart_on_crash):
        return Plan(refusal="restart_on_crash is off, so a person has to start it again", waits=True)
    if (refused := _restarts_not(facts, policy, restarts_spent)) is not None:
        return refused
    if facts.jobs.writers:
        return Plan(reason="something of the job is still alive")
    if not hung and (left_s := _backoff_s(facts.liveness.starts_unix_s, restarts_spent) - facts.now_unix_s) > 0:
        return Plan(
            refusal=f"the job was started {restarts_spent} times in a row and is gone again: the next start is in "
            f"{left_s:.0f} s",
            waits=True,
        )
    incident = facts.open_incident
    current = incident.current if incident else None
    folders, overrides = facts.folders, facts.folders.overrides
    rollback = overrides.rollback if overrides else None
    whole = [c for c in folders.checkpoints if c.complete and c.verified is not False and not c.only_pinned]
    # whether the rollback in force has saved a checkpoint of its own
    saved = overrides is not None and bool(whole) and whole[-1].global_step > overrides.anchor.global_step
    start = StartJob(incident.id if incident else None, current.id if current else rollback, follow_up=saved)
    if (refused := no_start(facts, policy, start.rollback)) is not None:
        return refused
    if not whole:
        return Plan(actions=(start,), reason="the job is gone, before its first checkpoint")
    last = whole[-1]
    if last.verified is None:
        return Plan(actions=(VerifyCheckpoint(last.tag),), reason=f"{last.tag} is checked before the job is restarted")
    if folders.latest_tag == last.tag and folders.disagreement is None:
        return Plan(actions=(start,), reason=f"the job is gone: it goes on from {last.tag}")
    ids = (incident.id if incident else "restart", rollback or "restart")
    point = PointLatest(last.tag, last.global_step, *ids, folders.by_newest)
    says = "the newest is" if folders.by_newest else "`latest` says"
    why = folders.disagreement or f"{says} {folders.latest_tag!r}"
    return Plan(actions=(point, start), reason=f"{why}; {last.tag} is the last that is whole")


def _backoff_s(starts_unix_s: Sequence[float], restarts_spent: int) -> float:
    """When the job may be started again after a crash, on the axis of `starts_unix_s`: 10 s, 20 s, 40 s … after its
    last start while no checkpoint comes of it, half as long to half as long again. The part by chance is drawn from
    that start's time: runs that one outage has ended start apart, and a decision made again is the same."""
    if not starts_unix_s or not restarts_spent:
        return -math.inf
    last, doubled = max(starts_unix_s), float(2 ** min(restarts_spent - 1, 30))
    return last + min(_BACKOFF_S * doubled, _BACKOFF_MOST_S) * (0.5 + (abs(last) * 7919) % 1.0)


def plan_hang(facts: Facts, policy: Policy, *, restarts_spent: int) -> Plan:
    """What to do about a job that lives and does nothing: keep its stacks and stop it; then it is gone, as in a crash.
    What waits behind it is stopped with it, and comes back with it: else it would begin from a `latest` that nobody has
    looked at."""
    if not policy.restart_on_hang:
        return Plan(refusal="restart_on_hang is off, so a person has to stop it", waits=True)
    if (refused := _restarts_not(facts, policy, restarts_spent)) is not None:
        return refused
    if (refused := no_start(facts, policy, None)) is not None:
        return refused
    if facts.jobs.start.prepares and not facts.jobs.start.restart_prepared:
        return Plan(actions=(PrepareJob(None, None),), reason="its restart is prepared")
    stop = StopJob(tuple(w.id for w in facts.jobs.writers), keep_stacks=True)
    return Plan(actions=(stop,), reason="it hangs: it is stopped, and started again from its last whole checkpoint")


def _restarts_not(facts: Facts, policy: Policy, restarts_spent: int) -> Plan | None:
    if (refused := on_hold(facts)) is not None:
        return refused
    if (why := hindered(facts.liveness) or settles(facts.liveness)) is not None:
        return Plan(refusal=why, waits=True)
    if restarts_spent >= policy.start_budget:
        return Plan(refusal=f"the job was started again {restarts_spent} times without getting to a new checkpoint")
    return None


def newest_audit(facts: Facts) -> StartAudit | None:
    """Of the newest attempt, as far as it is settled."""
    attempt = facts.latest
    if facts.on_demand.start is not None:
        return facts.on_demand.start if facts.on_demand.start.settled else None
    return audits_of(facts.events).get(attempt.number) if attempt is not None else None


def bad_start_turn(facts: Facts, policy: Policy) -> Turn | None:
    """Stops the job, and leaves it down; None where the start is not known to be bad, or that is not wanted."""
    found = newest_audit(facts)
    if found is None or found.verdict is not Continued.NO or not (policy.stop_bad_start and policy.mode == "act"):
        return None
    if facts.open_incident is not None and facts.open_incident.status != "holding":  # its proof settles it
        return None
    if facts.verdict.kind is VerdictKind.DOWN and not facts.jobs.writers:
        why = f"{found.reason}; it was stopped (stop_bad_start), and a person starts it again"
        return Turn(reason=why, message=why, down=why)
    why = f"{found.reason}; it is stopped (stop_bad_start)"
    waits = hindered(facts.liveness) or (held.refusal if (held := on_hold(facts)) is not None else None)
    if waits is not None or not facts.jobs.known or not facts.jobs.writers:
        return Turn(reason=waits or found.reason, message=waits)
    return Turn(reason=why, message=why, actions=(StopJob(tuple(w.id for w in facts.jobs.writers)),))
