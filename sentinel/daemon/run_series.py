"""What the daemon shows of one run: of a look at it, of its actions, and of the daemon's turns. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from sentinel.act.observation import Observation
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.alerts.alerts import AGAIN_S, unsettled
from sentinel.plan.choose.policy import Mode, Policy
from sentinel.plan.incident.incident import Incident, Proof, Status
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import Done, Failed
from sentinel.plan.restart.actions import KINDS
from sentinel.plan.restart.forecast import lost_so_far
from sentinel.plan.restart.restart import newest_audit
from sentinel.plan.starts.audit import Continued
from sentinel.vocabulary.metrics import PREFIX, Exemplar, Shown, exemplar

if TYPE_CHECKING:
    from sentinel.judge.analysis.correlation.table import Correlation

_SEVERITIES = ("info", "warning", "critical")
_OUTCOMES = (Done.kind, Failed.kind)  # of an action, as the incident log has them
_PROOFS = {Proof.CONFIRMED: "proved", Proof.NOT_VERIFIED: "not_verified", Proof.CONTRADICTED: "not_proved"}

MITIGATIONS = (*("bisecting", "decided", "applied", "proved", "not_verified", "not_proved", "failed", "taken_back"),)
"""Its cause is looked for; states of a rollback: being carried out; carried out, not proved yet;
confirmed; not verified; did not take effect; did not recover; taken back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Cost and failures of the daemon's turns of one run, since it began to watch."""

    count: int = 0
    errors: int = 0  # turns with an error: another system that did not answer, or an unexpected exception
    took_s: float = 0.0  # of all turns together, wall time
    last_took_s: float = 0.0
    last_late_s: float = 0.0  # by which the last turn began after its due time
    last_look_unix_s: float | None = None  # None before the first look at the run

    def with_turn(self, *, took_s: float, failed: bool, look_unix_s: float | None, late_s: float = 0.0) -> Turns:
        return replace(
            self,
            count=self.count + 1,
            errors=self.errors + failed,
            took_s=self.took_s + took_s,
            last_took_s=took_s,
            last_late_s=late_s,
            last_look_unix_s=self.last_look_unix_s if look_unix_s is None else look_unix_s,
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


def exposed(run: str, look: Observation, policy: Policy, leads: Iterable[Correlation] = ()) -> tuple[Shown, ...]:
    """Metrics of one look: of the newest attempt, and of the run; without `of_actions`."""
    number = "" if look.history.latest is None else str(look.history.latest.number)
    of_attempt = (Shown(PREFIX + name, float(v), (run, number, *rest)) for name, v, *rest in _of_attempt(look, leads))
    of_run = (Shown(PREFIX + name, float(value), (run, *rest)) for name, value, *rest in _of_run(look, policy))
    return (*of_attempt, *of_run)


def _of_attempt(look: Observation, leads: Iterable[Correlation]) -> Iterator[tuple[str, float, *tuple[str, ...]]]:
    verdict, last = look.verdict, look.series.last
    for kind in VerdictKind:
        yield "verdict", kind is verdict.kind, str(kind)
    yield "severity", _SEVERITIES.index(verdict.severity)
    if last is not None:
        yield "judged_global_step", last.global_step
        yield "judged_loss", last.loss
        if not math.isnan(last.time_unix_s):
            yield "last_sample_timestamp_seconds", last.time_unix_s
        # the loss over the judge's level; inf where the loss is not finite, which is the worst ratio
        level = look.series.level
        if not math.isfinite(last.loss):
            yield "judged_loss_ratio", math.inf
        elif level is not None and level > 0:
            yield "judged_loss_ratio", last.loss / level
    episode = look.series.episode
    if episode is not None and episode.level > 0 and episode.samples:
        yield "judged_loss_ratio_peak", episode.peak / episode.level
    yield "attention_logit_warning", look.series.logit_warning is not None
    yield "early_warning", look.series.early_warning is not None
    if verdict.onset_range is not None:
        for edge, step in zip(("early", "late"), verdict.onset_range, strict=True):
            yield "onset_step", step, edge
    if verdict.alarm_step is not None:
        yield "alarm_step", verdict.alarm_step
    yield from _led(look)
    yield from _of_start(look)
    for lead in leads:
        yield "correlation", lead.pearson_r, lead.signal
        yield "correlation_lag_steps", lead.lag, lead.signal


def _led(look: Observation) -> Iterator[tuple[str, float, str]]:
    incident = look.facts.open_incident
    if incident is not None and incident.moved_first is not None:
        for led in incident.moved_first.leading:
            yield "led_by_steps", led.steps_before_onset, led.signal


def _of_start(look: Observation) -> Iterator[tuple[str, float, str]]:
    if (start := newest_audit(look.facts)) is not None:
        for answer in Continued:
            yield "start_audit", answer is start.verdict, str(answer)


def _of_run(look: Observation, policy: Policy) -> Iterator[tuple[str, float, *tuple[str, ...]]]:
    incidents = look.facts.incidents
    standing = Counter(incident.status for incident in incidents)
    for status in get_args(Status):
        yield "incidents", standing[status], status
    if incidents:
        yield "last_incident_timestamp_seconds", incidents[-1].opened_unix_s
    state = _mitigation(incidents)
    if state is not None:
        for one in MITIGATIONS:
            yield "mitigation", one == state, one
    yield "last_action_failed", unsettled(look.events, look.facts.now_unix_s, within_s=AGAIN_S)
    rollbacks = [rollback for incident in incidents for rollback in incident.rollbacks]
    yield "budget_rollbacks_left", max(0, policy.rollback_budget - len(rollbacks))
    yield "budget_lost_steps_left", max(0, policy.lost_steps_budget - lost_so_far(incidents))
    if policy.gpu_hours_budget is not None:
        spent = sum(incident.spent_gpu_hours for incident in incidents)
        yield "budget_gpu_seconds_left", 3600 * max(0.0, policy.gpu_hours_budget - spent)
    yield "paused", look.facts.person.paused


def _mitigation(incidents: tuple[Incident, ...]) -> str | None:
    """State of the newest rollback of the newest incident that is not closed; None where there is none."""
    there = [i for i in incidents if i.status != "closed" and (i.rollbacks or i.bisecting)]
    if not there:
        return None
    if there[-1].bisecting:
        return "bisecting"
    rollback = there[-1].rollbacks[-1]
    if rollback.taken_back:
        return "taken_back"
    if rollback.failed is not None:
        return "failed"
    if rollback.proof is not None:
        return _PROOFS[rollback.proof]
    return "applied" if rollback.applied else "decided"


def of_actions(run: str, events: Sequence[IncidentEvent]) -> tuple[Shown, ...]:
    """How many actions ended how; the last of each, where it was for an incident, as the exemplar."""
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], Exemplar] = {}
    for event in events:
        if isinstance(event, Done | Failed):
            key = event.action.kind, event.kind
            counts[key] += 1
            last[key] = exemplar({"incident": event.incident, "rollback": event.rollback}, event.time_unix_s)
    kinds = sorted({*KINDS.values(), *(kind for kind, _ in counts)})  # from 0 on: increase() needs a first value
    return tuple(
        Shown(f"{PREFIX}actions_total", float(counts[key]), (run, *key), last.get(key))
        for key in itertools.product(kinds, _OUTCOMES)
    )


class ActionCounts:
    """`of_actions`, counted again only where the incident log, which only grows, has grown."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._events = 0
        self._counted = of_actions(run, ())

    def of(self, events: Sequence[IncidentEvent]) -> tuple[Shown, ...]:
        if len(events) != self._events:
            self._events, self._counted = len(events), of_actions(self._run, events)
        return self._counted
