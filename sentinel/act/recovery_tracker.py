"""A restart that is waited for, followed sample by sample: what of the past its recovery is measured by."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sentinel.act.observe import Look
from sentinel.act.reported import warmup_end
from sentinel.judge.history import Attempt, History
from sentinel.judge.recovery_check import Danger, OldTrend, Recovery, Restart, recovery_of
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident import Incident, Rollback
from sentinel.vocabulary.sample import Sample, Validation

__all__ = ["Held"]


@dataclass(slots=True)
class _Known:
    """What was read of the runs' past, and up to where it was followed."""

    of: tuple[object, ...]
    """Whose it is: with another onset, danger, target or attempt it is another past."""

    old: OldTrend | None
    validated_before: Sequence[Validation]
    restart: Restart
    made: int = 0
    """Samples of the attempt that the restart has taken."""


class Held:
    """Keeps the past of the one restart that is held. It is read once, and again after the daemon was started again."""

    def __init__(self) -> None:
        self._known: _Known | None = None

    def recovery(
        self, incident: Incident, rollback: Rollback, attempt: Attempt, look: Look, *, hold_steps: int
    ) -> Recovery:
        """Whether the attempt that was started for the rollback has recovered by now."""
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
            known = _Known(
                of=of,
                old=_trend_before(history, incident, full_seqlen),
                validated_before=_validated_before(history, incident),
                restart=Restart(danger, full_seqlen),
            )
            samples = history.lineage(attempt)
        else:
            samples = attempt.samples[len(attempt.samples) - new :]
        for sample in samples:  # what it raises leaves `_known` as it was
            if sample.global_step > rollback.target_step:
                known.restart.push(sample)
        known.made, self._known = attempt.made, known
        return known


def _trend_before(history: History, incident: Incident, full_seqlen: int | None) -> OldTrend | None:
    """Of the steps before the onset, of the attempt that diverged."""
    attempt, onset = history.attempts.get(incident.attempt), incident.onset_range
    if attempt is None or onset is None:
        return None
    return OldTrend.of((s for s in history.lineage(attempt) if s.global_step < onset[0]), full_seqlen)


def _validated_before(history: History, incident: Incident) -> list[Validation]:
    """The validations before the onset, of the attempt that diverged."""
    attempt = history.attempts.get(incident.attempt)
    if attempt is None or incident.onset_range is None:
        return []
    return [v for v in history.validations(attempt) if v.global_step < incident.onset_range[0]]


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
