"""What a turn needs that is read on demand: the loss before an onset, a restart's first steps, its recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from sentinel.act.observation import Observation
from sentinel.act.starts import Starts
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Danger, OldTrend, Recovery, Restart, recovery_of
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.baseline import onset_readings, warmup_end
from sentinel.plan.incident.incident import Incident, Rollback, digest_of
from sentinel.plan.needs import needs_of
from sentinel.plan.starts.evidence import FIRST_STEPS, Evidence
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Sample, Validation

ScriptRefusal = Callable[[Overrides], str | None]  # why the job script can't carry the changes; None where it can


@dataclass(slots=True)
class _Known:
    """What was read of the runs' past, and up to where it was followed."""

    of: tuple[object, ...]  # whose it is: with another onset, danger, target or attempt it is another past
    old: OldTrend | None
    validated_before: Sequence[Validation]
    restart: Restart
    made: int = 0  # samples of the attempt that the restart has taken


class PastReader:
    """Reads what `needs_of` asks for, and only that. The past of a restart is read once, then followed by its samples;
    it is read again after the daemon was started again."""

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._starts = Starts()
        self._previews: dict[str, str | None] = {}

    def read(self, look: Observation, policy: Policy, script_refusal: ScriptRefusal) -> Observation:
        """The look, with the readings that its turn is decided by. What the source raises."""
        look = look.known(start=self._starts.audit(look), previews=dict(self._previews))
        needs, attempt = needs_of(look.facts, policy), look.history.latest
        if (decision := needs.preview) is not None:
            self._previews[digest_of(decision)] = script_refusal(decision.overrides)
            look = look.known(previews=dict(self._previews))
        if attempt is None:
            return look
        if needs.onset_range is not None:
            known, lineage = look.facts.settings.baseline, look.history.lineage(attempt)
            return look.known(onset=onset_readings(lineage, needs.onset_range, known.full_seqlen, known.clip_grad))
        if (incident := needs.evidence_for) is not None:
            return look.known(evidence=evidence(look.history, attempt, before=incident.attempt))
        if (incident := needs.recovery_of) is not None and (rollback := incident.current) is not None:
            return look.known(recovery=self.recovery(incident, rollback, attempt, look, hold_steps=policy.hold_steps))
        return look

    def recovery(
        self, incident: Incident, rollback: Rollback, attempt: Attempt, look: Observation, *, hold_steps: int
    ) -> Recovery:
        known = self._followed(incident, rollback, attempt, look.history, _danger(incident, attempt, hold_steps))
        validations = look.history.validations(attempt)
        return recovery_of(
            known.old,
            known.restart,
            look.series,
            finished=look.verdict.kind is VerdictKind.FINISHED,
            validated_before=known.validated_before,
            validated=[v for v in validations if v.global_step > rollback.target_step],
        )

    def _followed(
        self, incident: Incident, rollback: Rollback, attempt: Attempt, history: History, danger: Danger
    ) -> _Known:
        full_seqlen, known = attempt.started.full_seqlen if attempt.started else None, self._known
        of = (incident.attempt, incident.onset_range, rollback.target_step, attempt.number, danger, full_seqlen)
        new = attempt.made - known.made if known is not None else 0
        samples: Iterable[Sample]
        if known is None or known.of != of or new > len(attempt.samples):
            old, validated = _before_the_onset(history, incident, full_seqlen)
            known = _Known(of=of, old=old, validated_before=validated, restart=Restart(danger, full_seqlen))
            samples = history.lineage(attempt, rollback.target_step)
        else:
            samples = attempt.samples[len(attempt.samples) - new :]
        for sample in samples:  # what it raises leaves `_known` as it was
            if sample.global_step > rollback.target_step:
                known.restart.push(sample)
        known.made, self._known = attempt.made, known
        return known


def _before_the_onset(
    history: History, incident: Incident, full_seqlen: int | None
) -> tuple[OldTrend | None, list[Validation]]:
    """Of the attempt that diverged."""
    attempt, onset = history.attempts.get(incident.attempt), incident.onset_range
    if attempt is None or onset is None:
        return None, []
    old = OldTrend.of((s for s in history.lineage(attempt) if s.global_step < onset[0]), full_seqlen)
    return old, [v for v in history.validations(attempt) if v.global_step < onset[0]]


def _danger(incident: Incident, attempt: Attempt, hold_steps: int) -> Danger:
    started = attempt.started
    return Danger(
        onset_step=incident.onset_range[1] if incident.onset_range else 0,
        onset_tokens=incident.onset_tokens,
        warmup_end_step=(warmup_end(started) if started else None) or 0,
        best_before=incident.best_mean,
        hold_steps=hold_steps,
        total_steps=started.total_steps if started else None,
    )


def evidence(history: History, attempt: Attempt, *, before: int) -> Evidence | None:
    """The attempt's start and first steps; the same steps of attempt `before`. None before its start is reported."""
    if attempt.started is None:
        return None
    samples = tuple(islice(history.samples(attempt), FIRST_STEPS))
    earlier, steps, lr_before = history.attempts.get(before), {sample.global_step for sample in samples}, {}
    if earlier is not None and earlier.number != attempt.number and len(steps) == FIRST_STEPS:
        of_steps = history.lineage(earlier, min(steps) - 1)
        same = takewhile(lambda sample: sample.global_step <= max(steps), of_steps)
        lr_before = {s.global_step: s.lr for s in same if s.global_step in steps and s.lr is not None}
    report = earlier.started if earlier is not None else None
    return Evidence(started=attempt.started, samples=samples, before=report, lr_before=lr_before)
