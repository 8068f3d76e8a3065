"""One run's metrics at the daemon's /metrics and in its textfile: of its last look, and of the daemon's turns."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, get_args

from sentinel.act.watch import Watch
from sentinel.adapters.exposition.exposition import Exposition, Textfile
from sentinel.config import Config
from sentinel.judge.history import LAST_SAMPLES
from sentinel.judge.readings import BANDED
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.actions import KINDS
from sentinel.plan.alerts import AGAIN_S, unsettled
from sentinel.plan.forecast import lost_so_far
from sentinel.plan.incident import Incident, Proof, Status
from sentinel.plan.look import Look, Outcome
from sentinel.plan.policy import Mode, Policy
from sentinel.plan.restart import newest_audit
from sentinel.plan.start_audit import Continued
from sentinel.vocabulary.metrics import PREFIX, Exemplar, Shown, exemplar
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:
    from sentinel.judge.analysis.correlation.table import Correlation

log = logging.getLogger(__name__)

_VERSION = version("training-sentinel")
_SEVERITIES = ("info", "warning", "critical")
_OUTCOMES = ("done", "failed")  # of an action, as the incident log has them
_PROOFS = {Proof.CONFIRMED: "proved", Proof.NOT_VERIFIED: "not_verified", Proof.CONTRADICTED: "not_proved"}

MITIGATIONS = (
    *("bisecting", "racing", "decided", "applied", "proved", "not_verified", "not_proved", "failed", "taken_back"),
)
"""Its cause is looked for, its rungs race; states of a rollback: being carried out; carried out, not proved yet;
confirmed; not verified; did not take effect; did not recover; taken back."""

_LEAST_SAMPLES = 64
_INTERVAL_S = 60.0  # a correlation of 512 samples takes 50 ms of a core
_CORRELATED = (VerdictKind.SPIKE, VerdictKind.DIVERGED)


class RunMetrics:
    """Lives while the watch has the run's lock. An error here may cost a scrape, never a turn."""

    def __init__(self, config: Config, exposition: Exposition, *, observe: bool, once: bool) -> None:
        self._observe = observe
        self._once = once
        self._config = config
        self._exposition = exposition
        self._turns = Turns()
        self._correlated = Correlated()
        self._well = True
        self._textfile = _textfile(config)
        exposition.open()
        self._show(None)

    def close(self, *, well: bool) -> bool:
        """Withdraws the metrics where the watch ended as it should, and returns whether it did. Else they stay and grow
        stale, so that the alert for a missing watch fires."""
        if not (well and self._well):
            return False
        self._exposition.withdraw(self._config.run.name)
        if self._textfile is not None and not self._once:  # with --once the file stays until the next look
            self._textfile.remove()
        return True

    def reload(self, config: Config) -> None:
        """Applies the configuration that was read again."""
        before, self._config = self._config, config
        if config.metrics.textfile != before.metrics.textfile:
            if self._textfile is not None:
                self._textfile.remove()
            self._textfile = _textfile(config)
            self._show(None)

    def turn(self, watching: Watch, done: Outcome | None, *, took_s: float, late_s: float, failed: bool) -> None:
        look = watching.last
        self._well = done in (None, Outcome.FINISHED)
        look_unix_s = look.run.now_unix_s if look else None
        self._turns = self._turns.with_turn(took_s=took_s, late_s=late_s, failed=failed, look_unix_s=look_unix_s)
        try:
            self._show(look)
        except Exception:  # at the loop's edge: metrics must not cost a turn
            log.exception("can't update /metrics")

    def _show(self, look: Look | None) -> None:
        config, run = self._config, self._config.run.name
        mode: Mode = "observe" if self._observe else config.policy.mode
        seen = () if look is None else exposed(run, look, config.policy, self._correlated.of(look))
        pace_s = config.watch.poll_interval_s
        shown = (*seen, *of_daemon(run, self._turns, mode=mode, poll_interval_s=pace_s, version=_VERSION))
        self._exposition.show(run, shown)
        if self._textfile is not None:
            self._textfile.write(shown)


def _textfile(config: Config) -> Textfile | None:
    path = config.metrics.textfile
    return None if path is None else Textfile(path)


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


def exposed(run: str, look: Look, policy: Policy, leads: Iterable[Correlation] = ()) -> tuple[Shown, ...]:
    """Metrics of one look: of the newest attempt, and of the run."""
    number = "" if look.history.latest is None else str(look.history.latest.number)
    of_attempt = (Shown(PREFIX + name, float(v), (run, number, *rest)) for name, v, *rest in _of_attempt(look, leads))
    of_run = (Shown(PREFIX + name, float(value), (run, *rest)) for name, value, *rest in _of_run(look, policy))
    return (*of_attempt, *of_run, *_of_actions(run, look))


def _of_attempt(look: Look, leads: Iterable[Correlation]) -> Iterator[tuple[str, float, *tuple[str, ...]]]:
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
    yield "early_warning", look.series.warning is not None
    if verdict.onset_range is not None:
        for edge, step in zip(("early", "late"), verdict.onset_range, strict=True):
            yield "onset_step", step, edge
    if verdict.alarm_step is not None:
        yield "alarm_step", verdict.alarm_step
    for signal, steps in zip(verdict.led_by, verdict.led_by_steps, strict=False):
        yield "led_by_steps", steps, signal
    yield from _of_start(look)
    for lead in leads:
        yield "correlation", lead.pearson_r, lead.signal
        yield "correlation_lag_steps", lead.lag, lead.signal


def _of_start(look: Look) -> Iterator[tuple[str, float, str]]:
    if (start := newest_audit(look)) is not None:
        for answer in Continued:
            yield "start_audit", answer is start.verdict, str(answer)


def _of_run(look: Look, policy: Policy) -> Iterator[tuple[str, float, *tuple[str, ...]]]:
    incidents = look.run.incidents
    standing = Counter(incident.status for incident in incidents)
    for status in get_args(Status):
        yield "incidents", standing[status], status
    if incidents:
        yield "last_incident_timestamp_seconds", incidents[-1].opened_unix_s
    state = _mitigation(incidents)
    if state is not None:
        for one in MITIGATIONS:
            yield "mitigation", one == state, one
    yield "last_action_failed", unsettled(look.events, look.run.now_unix_s, within_s=AGAIN_S)
    rollbacks = [rollback for incident in incidents for rollback in incident.rollbacks]
    yield "budget_rollbacks_left", max(0, policy.rollback_budget - len(rollbacks))
    yield "budget_lost_steps_left", max(0, policy.lost_steps_budget - lost_so_far(incidents))
    if policy.gpu_hours_budget is not None:
        spent = sum(incident.spent_gpu_hours for incident in incidents)
        yield "budget_gpu_seconds_left", 3600 * max(0.0, policy.gpu_hours_budget - spent)
    yield "paused", look.run.paused


def _mitigation(incidents: tuple[Incident, ...]) -> str | None:
    """State of the newest rollback of the newest incident that is not closed; None where there is none."""
    there = [i for i in incidents if i.status != "closed" and (i.rollbacks or i.race is not None or i.bisecting)]
    if not there:
        return None
    if there[-1].bisecting:
        return "bisecting"
    if there[-1].race is not None:
        return "racing"
    rollback = there[-1].rollbacks[-1]
    if rollback.taken_back:
        return "taken_back"
    if rollback.failed is not None:
        return "failed"
    if rollback.proof is not None:
        return _PROOFS[rollback.proof]
    return "applied" if rollback.applied else "decided"


def _of_actions(run: str, look: Look) -> Iterator[Shown]:
    """How many actions ended how; the last of each, where it was for an incident, as the exemplar."""
    counts: Counter[tuple[str, str]] = Counter()
    last: dict[tuple[str, str], Exemplar] = {}
    for event in look.events:
        if event["event"] in _OUTCOMES:
            key = str(event["action"]["kind"]), str(event["event"])
            counts[key] += 1
            labels = {"incident": event["incident"], "rollback": event.get("rollback")}
            last[key] = exemplar(labels, float(event["time_unix_s"]))
    for kind in sorted({*KINDS.values(), *(kind for kind, _ in counts)}):  # from 0 on: increase() needs a first value
        for outcome in _OUTCOMES:
            key = kind, outcome
            yield Shown(f"{PREFIX}actions_total", float(counts[key]), (run, *key), last.get(key))


def leads(samples: list[Sample]) -> tuple[Correlation, ...]:
    """The strongest correlation of each signal that may lead; none for fewer than 64 samples."""
    if len(samples) < _LEAST_SAMPLES:
        return ()
    from sentinel.judge.analysis.correlation.columns import correlate  # only then: a healthy run needs no scipy

    best = {p.signal: p.row(p.best) for p in correlate(samples).profiles if p.best is not None}
    return tuple(best[signal] for signal in BANDED if signal in best and math.isfinite(best[signal].pearson_r))


class Correlated:
    """Computes `leads` of the last 512 samples, once a minute at most, and keeps the last result."""

    def __init__(self) -> None:
        self._last: tuple[Correlation, ...] = ()
        self._since: tuple[int, float] | None = None

    def of(self, look: Look) -> tuple[Correlation, ...]:
        """Correlations of the newest attempt; none while the verdict is neither spike nor diverged."""
        attempt, now_unix_s = look.history.latest, look.run.now_unix_s
        if attempt is None or look.verdict.kind not in _CORRELATED:
            self._last, self._since = (), None
            return ()
        if self._since is None or self._since[0] != attempt.number or now_unix_s - self._since[1] >= _INTERVAL_S:
            self._last = leads(attempt.samples[-LAST_SAMPLES:])
            if len(attempt.samples) >= _LEAST_SAMPLES:  # fewer samples: try again at the next turn
                self._since = (attempt.number, now_unix_s)
        return self._last
