"""Rungs that race: who runs beside whom, when it is over, and which one becomes the run, each with its reason. Pure.

Every probe ends at the same step, past the late end of the onset, so what they have come to compares. What is not known
of a probe never wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from statistics import fmean

from sentinel.judge.recovery_check import BETTER_BY
from sentinel.plan.actions import StartProbe, StopProbe
from sentinel.plan.decision import gpu_hours_left, plan_rung
from sentinel.plan.forecast import gpu_hours, save_interval
from sentinel.plan.incident import Adoption, Event, Incident, Proof, Race, Rollback, probe_id, rollback_id
from sentinel.plan.incident_events import event
from sentinel.plan.look import Turn
from sentinel.plan.observation import Life, RunState, Standing
from sentinel.plan.policy import Policy
from sentinel.plan.rollback import Plan

ALIKE_WITHIN = 0.01
"""Share of the lowest loss within which two probes are alike: then the rung that stands first in the ladder wins."""


def race_of(incident: Incident, run: RunState, policy: Policy) -> Race | Plan | None:
    """The next rungs as a race; a plan where a target is to be verified first; None where fewer than two can run side
    by side: then the next one is tried by itself."""
    if policy.race < 2 or policy.mode != "act" or run.no_races is not None or any(r.void for r in incident.races):
        return None
    if incident.onset_range is None:
        return None
    until_step, entrants = _until(incident.onset_range[1] + policy.race_steps, run), list[Rollback]()
    begun = sum(len(race.entrants) for race in incident.races)
    for rung in policy.ladder[incident.tried : incident.tried + policy.race]:
        if not rung.restarts:
            break
        plan = plan_rung(rung, incident, run, policy, beside=len(entrants))
        if plan.decision is None:
            if plan.actions:
                return plan
            break
        entrant = _as_probe(plan.decision, probe_id(incident.id, begun + len(entrants) + 1))
        if not _affordable([*entrants, entrant], until_step, run, policy):
            break
        entrants.append(entrant)
    if len(entrants) < 2:
        return None
    return Race(entrants=tuple(entrants), until_step=until_step, gpu_hours=_price(entrants, until_step, run))


def _until(step: int, run: RunState) -> int:
    """The step, or the first after it at which the run saves, as far as its interval is known."""
    interval = save_interval(run) or 1
    return -(-step // interval) * interval


def _as_probe(decision: Rollback, name: str) -> Rollback:
    """Its one-shot changes carry the probe's name, which the checkpoints that it saves keep on record."""
    once = decision.overrides.once
    named = replace(decision.overrides, rollback=name, once=None if once is None else replace(once, id=name))
    return replace(decision, id=name, overrides=named)


def _price(entrants: Iterable[Rollback], until_step: int, run: RunState) -> float | None:
    return gpu_hours(sum(until_step - entrant.target_step for entrant in entrants), run)


def _affordable(entrants: Sequence[Rollback], until_step: int, run: RunState, policy: Policy) -> bool:
    """Whether the probes, and what the dearest rollback of them throws away, fit into what is left of the budget."""
    left, cost = gpu_hours_left(run, policy), _price(entrants, until_step, run)
    thrown = max(entrant.lost_gpu_hours or 0.0 for entrant in entrants)
    return left is None or cost is None or cost + thrown <= left


def next_of_race(race: Race, standings: Sequence[Standing], incident: Incident, parallel: int) -> Turn:
    """One step further: a probe that is lost is stopped, one that waits is started where there is room, and when every
    one has ended the winner is named."""
    running = [s for s in standings if s.life in (Life.ALIVE, Life.UNKNOWN)]
    for s in running:
        passed = f"has passed step {race.until_step}" if (s.last_step or 0) > race.until_step else None
        lost = passed if s.ill is None else f"is not healthy: {s.ill}"
        if s.life is Life.ALIVE and lost is not None:
            stop = StopProbe(s.probe, incident.id)
            return Turn(reason=f"{s.probe} {lost}", actions=(stop,), incident=incident.id)
    waiting = [s for s in standings if s.life is None]
    if waiting and len(running) < parallel:
        name = waiting[0].probe
        start = StartProbe(name, incident.id)
        return Turn(reason=f"{name} is the next probe of the race", actions=(start,), incident=incident.id)
    if running:
        at = ", ".join(s.refused or f"{s.probe} at step {s.last_step or '-'}" for s in running)
        return Turn(reason=f"the race goes on to step {race.until_step}: {at}", incident=incident.id)
    ended = _ended(race, standings, incident)
    return Turn(reason="every probe of the race has ended", records=(ended,), incident=incident.id)


def _ended(race: Race, standings: Sequence[Standing], incident: Incident) -> Event:
    if all(s.refused is not None for s in standings):
        why = f"no probe could be started: {standings[0].refused}; the rungs are tried one by one"
        return event("race_ended", incident.id, winner=None, void=True, reason=why, standings=[])
    won, reason, said = winner(race, standings, incident)
    told = [{"probe": s.probe, "rung": race.entrant(s.probe).rung, "said": said[s.probe]} for s in standings]
    saved = won.saved if won is not None else None
    return event("race_ended", incident.id, winner=asdict(saved) if saved else None, reason=reason, standings=told)


def winner(
    race: Race, standings: Sequence[Standing], incident: Incident
) -> tuple[Standing | None, str, dict[str, str]]:
    """The healthiest probe, or None; why, as a sentence; and of each probe what it has come to."""
    fit = [s for s in standings if _unfit(s, race) is None]
    validated = bool(fit) and all(s.level(validated=True) is not None for s in fit)
    before = _before(fit, incident, validated=validated)
    said = {s.probe: _unfit(s, race) or _not_back(s, before, validated=validated) for s in standings}
    healthy = [s for s in fit if said[s.probe] is None]
    levels = {s.probe: level for s in healthy if (level := s.level(validated=validated)) is not None}
    kind = "validation loss" if validated else "training loss"
    told = {name: why or f"{kind} {levels[name]:.4g} at step {race.until_step}" for name, why in said.items()}
    limit = min(levels.values(), default=math.nan) * (1 + ALIKE_WITHIN)
    won = next((s for s in healthy if levels[s.probe] <= limit), None)
    others = "; ".join(f"{race.entrant(s.probe).rung!r}: {told[s.probe]}" for s in standings if s is not won)
    if won is None:
        return None, f"no probe is healthy at step {race.until_step}: {others}", told
    return won, f"{race.entrant(won.probe).rung!r} is the healthiest: {told[won.probe]}; {others}", told


def _unfit(s: Standing, race: Race) -> str | None:
    """Why it can't win, as a phrase; None where it can."""
    if s.refused is not None:
        return f"could not be started: {s.refused}"
    if s.ill is not None:
        return s.ill
    if s.last_step is None or s.last_step < race.until_step:
        return f"its trainer ended at step {s.last_step or '-'}, before step {race.until_step}"
    if s.proof is None:
        return "it has not shown what it runs with"
    if s.proof is Proof.CONTRADICTED:
        return f"did not take effect: {', '.join(s.doubts)}"
    if s.saved is None:
        return f"it has left no whole checkpoint of step {race.until_step}"
    if s.level(validated=True) is None and s.level(validated=False) is None:
        return "no loss at full length is known past the onset"
    return None


def _before(fit: Sequence[Standing], incident: Incident, *, validated: bool) -> float | None:
    """The run's best before the onset, of the same kind, nats; None where it was not measured."""
    if not validated:
        return incident.best_mean
    known = [s.best_validation_before for s in fit if s.best_validation_before is not None]
    return fmean(known) if known else incident.best_mean


def _not_back(s: Standing, before: float | None, *, validated: bool) -> str | None:
    level = s.level(validated=validated)
    if level is None:
        return "no loss at full length is known past the onset"
    if before is None:
        return "no loss before the onset is known to compare with"
    if level > before * (1 + BETTER_BY):
        return f"its loss stands at {level:.4g}, above {before:.4g}, the best before the onset"
    return None


def adoption(race: Race, won: Adoption, incident: Incident, run: RunState) -> Rollback:
    """The decision that makes the winner the run: the rung's own rollback, and what the probe has trained since."""
    rung, ours = race.entrant(won.probe), rollback_id(incident.id, len(incident.rollbacks) + 1)
    overrides = replace(rung.overrides, rollback=ours)
    return replace(rung, id=ours, overrides=overrides, adopts=won, decided_unix_s=run.now_unix_s)
