"""exposed(look, …) -> the daemon's /metrics of one look at the run; of_daemon(turns, …) -> those of its own loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from sentinel.daemon.correlated import Leads
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import KINDS
from sentinel.plan.incident import Incident, Status
from sentinel.plan.look import Look
from sentinel.plan.policy import Mode, Policy
from sentinel.plan.price import lost_so_far
from sentinel.plan.proof_value import Proof
from sentinel.plan.trouble import AGAIN_S, unsettled
from sentinel.vocabulary.metrics import PREFIX, Exemplar, Shown, exemplar

__all__ = ["MITIGATIONS", "OUTCOMES", "Turns", "exposed", "of_daemon"]

MITIGATIONS = ("decided", "applied", "proved", "not_verified", "not_proved", "failed", "taken_back")
"""States of a rollback: being carried out; carried out, not proved yet; confirmed; not verified; did not take effect;
did not recover; taken back."""

OUTCOMES = ("done", "failed")
"""Of an action, as the incident log has them."""

_SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Cost and failures of the daemon's turns of one run, since it began to watch."""

    count: int = 0
    errors: int = 0
    """Turns with an error: a neighbour that did not answer, or an unexpected exception."""

    took_s: float = 0.0
    """Of all turns together, wall time."""

    last_took_s: float = 0.0
    last_late_s: float = 0.0
    """Seconds by which the last turn began after its due time."""

    last_look_unix_s: float | None = None
    """Time of the last look at the run; None before the first."""

    def with_turn(self, *, took_s: float, failed: bool, look_unix_s: float | None, late_s: float = 0.0) -> Turns:
        """The totals after one more turn."""
        return replace(
            self,
            count=self.count + 1,
            errors=self.errors + failed,
            took_s=self.took_s + took_s,
            last_took_s=took_s,
            last_late_s=late_s,
            last_look_unix_s=self.last_look_unix_s if look_unix_s is None else look_unix_s,
        )


def exposed(run: str, look: Look, policy: Policy, leads: Iterable[Leads] = ()) -> tuple[Shown, ...]:
    """Metrics of one look: of the newest attempt, and of the run."""
    attempt = look.history.latest
    return (
        *_of_attempt((run, "" if attempt is None else str(attempt.number)), look, leads),
        *_of_run(run, look, policy),
    )


def of_daemon(run: str, turns: Turns, *, mode: Mode, poll_interval_s: float, version: str) -> tuple[Shown, ...]:
    """Metrics of the daemon itself, also before its first look at the run."""
    return tuple(
        Shown(PREFIX + name, float(value), (run, *labels))
        for name, value, *labels in (
            *(("mode", of == mode, of) for of in get_args(Mode)),
            ("turns_total", turns.count),
            ("turn_errors_total", turns.errors),
            ("turn_seconds_total", turns.took_s),
            ("last_turn_seconds", turns.last_took_s),
            ("last_turn_late_seconds", turns.last_late_s),
            *((("last_look_timestamp_seconds", turns.last_look_unix_s),) if turns.last_look_unix_s else ()),
            ("poll_interval_seconds", poll_interval_s),
            ("build_info", 1, version),
        )
    )


def _of_attempt(known: tuple[str, str], look: Look, leads: Iterable[Leads]) -> Iterator[Shown]:
    def shown(name: str, value: float, *labels: str) -> Shown:
        return Shown(PREFIX + name, float(value), (*known, *labels))

    verdict, last = look.verdict, look.series.last
    for kind in VerdictKind:
        yield shown("verdict", kind is verdict.kind, str(kind))
    yield shown("severity", _SEVERITIES.index(verdict.severity))
    if last is not None:
        yield shown("judged_global_step", last.global_step)
        yield shown("judged_loss", last.loss)
        if not math.isnan(last.time_unix_s):
            yield shown("last_sample_timestamp_seconds", last.time_unix_s)
    for name, ratio in _ratios(look).items():
        yield shown(name, ratio)
    if verdict.onset_range is not None:
        for edge, step in zip(("early", "late"), verdict.onset_range, strict=True):
            yield shown("onset_step", step, edge)
    if verdict.alarm_step is not None:
        yield shown("alarm_step", verdict.alarm_step)
    for signal, steps in zip(verdict.led_by, verdict.led_by_steps, strict=False):
        yield shown("led_by_steps", steps, signal)
    for lead in leads:
        yield shown("correlation", lead.pearson_r, lead.signal)
        yield shown("correlation_lag_steps", lead.lag, lead.signal)


def _ratios(look: Look) -> dict[str, float]:
    """The loss over the judge's level, dimensionless; inf where the loss is not finite, which is the worst ratio."""
    series = look.series
    level, last, episode = series.level, series.last, series.episode
    ratios = {}
    if last is not None and not math.isfinite(last.loss):
        ratios["judged_loss_ratio"] = math.inf
    elif last is not None and level is not None and level > 0:
        ratios["judged_loss_ratio"] = last.loss / level
    if episode is not None and episode.level > 0 and episode.samples:
        ratios["judged_loss_ratio_peak"] = episode.peak / episode.level
    return ratios


def _of_run(run: str, look: Look, policy: Policy) -> Iterator[Shown]:
    def shown(name: str, value: float, *labels: str, exemplar: Exemplar | None = None) -> Shown:
        return Shown(PREFIX + name, float(value), (run, *labels), exemplar)

    incidents = look.run.incidents
    standing = Counter(incident.status for incident in incidents)
    for status in get_args(Status):
        yield shown("incidents", standing[status], status)
    if incidents:
        yield shown("last_incident_timestamp_seconds", incidents[-1].opened_unix_s)
    state = _mitigation(incidents)
    if state is not None:
        for one in MITIGATIONS:
            yield shown("mitigation", one == state, one)
    counts, last = _actions(look.events), _last_actions(look.events)
    for kind in sorted({*KINDS.values(), *(kind for kind, _ in counts)}):  # from 0 on: increase() needs a first value
        for outcome in OUTCOMES:
            yield shown("actions_total", counts[kind, outcome], kind, outcome, exemplar=last.get((kind, outcome)))
    yield shown("last_action_failed", unsettled(look.events, look.run.now_unix_s, within_s=AGAIN_S))
    rollbacks = [rollback for incident in incidents for rollback in incident.rollbacks]
    yield shown("budget_rollbacks_left", max(0, policy.rollback_budget - len(rollbacks)))
    yield shown("budget_lost_steps_left", max(0, policy.lost_steps_budget - lost_so_far(look.run.incidents)))
    if policy.gpu_hours_budget is not None:
        spent = sum(r.lost_gpu_hours or 0.0 for r in rollbacks)
        yield shown("budget_gpu_seconds_left", 3600 * max(0.0, policy.gpu_hours_budget - spent))
    yield shown("paused", look.run.paused)


_PROOFS = {
    Proof.CONFIRMED: "proved",
    Proof.NOT_VERIFIED: "not_verified",
    Proof.CONTRADICTED: "not_proved",
}


def _mitigation(incidents: tuple[Incident, ...]) -> str | None:
    """State of the newest rollback of the newest incident that is not closed; None where there is none."""
    there = [incident for incident in incidents if incident.status != "closed" and incident.rollbacks]
    if not there:
        return None
    rollback = there[-1].rollbacks[-1]
    if rollback.taken_back:
        return "taken_back"
    if rollback.failed is not None:
        return "failed"
    if rollback.proof is not None:
        return _PROOFS[rollback.proof]
    return "applied" if rollback.applied else "decided"


def _actions(events: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((str(e["action"]["kind"]), str(e["event"])) for e in events if e["event"] in OUTCOMES)


def _last_actions(events: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Exemplar]:
    """{(kind, outcome): the incident and the rollback of the last such action, where it was for one, and its time}."""
    return {
        (str(e["action"]["kind"]), str(e["event"])): exemplar(
            {"incident": e["incident"], "rollback": e.get("rollback")}, float(e["time_unix_s"])
        )
        for e in events
        if e["event"] in OUTCOMES
    }
