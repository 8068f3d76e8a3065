"""What a detector said of a curve, against what a person says that it is. Pure; docs/BACKTEST.md tells the rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .curves import DIVERGED, HARMLESS, Curve, Event

__all__ = ["Outcome", "Said", "Told", "deadline", "is_scored", "onset_of", "score", "stretches", "timed", "tolerance"]

TOLERANCE_STEPS, TOLERANCE_INTERVALS = 100, 5
"""A verdict may come so long after the onset (the longer of the two), and so long before it: labels are by eye."""

SLOWEST_SPIKE_FACTOR = 3
"""And as long as this many times the slowest spike that the run had recovered from before."""

ILL_SAMPLES = 3
"""A divergence is scored from so many readings on: as high as tr11-176B's spike rose within one, nobody can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One time that a detector said "diverged"."""

    step: int
    onset: int
    """Where it says that it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """All that a detector said of one curve."""

    detector: str
    verdicts: tuple[Told, ...]
    spikes: tuple[tuple[int, int], ...]
    """First and last step of every stretch that it called out, those of the verdicts too."""

    applicable: bool = True
    """Whether the curve has what it reads."""

    samples: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One detector on one curve."""

    detector: str
    curve: Curve
    unscored: str = ""
    """Why the curve counts for nothing; empty when it counts."""

    applicable: bool
    verdict_step: int | None
    """Of a divergence the first verdict that counts for it; of a harmless curve the first of all."""

    early_step: int | None = None
    """The first verdict before a divergence that is too early to be about it."""

    overdue_step: int | None = None
    """The first verdict on a labelled spike that had outlasted the deadline: it healed in the end, and nobody who has
    to answer by the deadline could have known."""

    delay_steps: int | None = None
    in_time: bool | None = None
    knowable: bool | None = None
    """Whether an ideal judge could have known by the log's end; None where nobody asked one."""

    past_ideal_steps: int | None = None
    """Steps from the ideal judge's verdict to this one's."""

    late: bool = False
    """Whether the verdict came after the deadline and after the ideal one's."""

    alone_step: int | None = None
    """The ideal judge's verdict where it compares each signal by itself; None where it knows of none."""

    together_step: int | None = None
    """Its verdict where it compares all signals at once."""

    onset_error_steps: int | None = None
    onset_error_intervals: float | None = None
    spikes: int = 0
    spikes_seen: int = 0
    false_spikes: int = 0
    """Stretches that were called out and began near no labelled event."""

    quiet_steps: int = 0
    """Steps of a harmless curve that are near no labelled event."""

    called_quiet_steps: int = 0
    """Those of them that were called out."""

    samples: int = 0
    seconds: float = 0.0

    @property
    def is_divergence(self) -> bool:
        return not self.unscored and self.curve.label in DIVERGED

    @property
    def is_harmless(self) -> bool:
        return not self.unscored and self.curve.label in HARMLESS

    @property
    def missed(self) -> bool:
        return self.is_divergence and self.verdict_step is None

    @property
    def unneeded(self) -> bool:
        """A rollback that was not needed: on a harmless curve, or long before the divergence."""
        return (self.is_harmless and self.verdict_step is not None) or (
            self.is_divergence and self.early_step is not None
        )


def onset_of(curve: Curve) -> int | None:
    """Where it began that did not come back: the first labelled diverge or nan."""
    return min((e.onset for e in curve.events if e.kind in ("diverge", "nan")), default=None)


def deadline(curve: Curve) -> int:
    """The step by which the verdict has to be there.

    max(100 steps, 5 intervals, 3 x the slowest spike recovered from before) after the onset, and one sample after nan.
    """
    onset = onset_of(curve)
    if onset is None:
        raise ValueError(f"{curve.name} has no divergence")
    slowest = max((e.end - e.onset for e in curve.events if e.kind == "spike" and e.end < onset), default=0)
    ends = [onset + max(tolerance(curve), SLOWEST_SPIKE_FACTOR * slowest)]
    nans = [e.onset for e in curve.events if e.kind == "nan"]
    ends += [min((s for s in curve.steps if s > at), default=at) for at in nans]
    return min(ends)


def tolerance(curve: Curve) -> int:
    """Steps that a verdict may be off."""
    return max(TOLERANCE_STEPS, TOLERANCE_INTERVALS * curve.log_interval)


def score(curve: Curve, said: Said) -> Outcome:
    """How the detector did on the curve."""
    unscored = _unscored(curve)
    first = min((v.step for v in said.verdicts), default=None)
    outcome = Outcome(
        detector=said.detector, curve=curve, unscored=unscored, applicable=said.applicable, verdict_step=first
    )
    onset = onset_of(curve)
    if not unscored and curve.label in DIVERGED and onset is not None:
        outcome = _on_divergence(outcome, said, onset)
    elif curve.label in HARMLESS:
        outcome = _on_harmless(outcome, said)
    return _counted(outcome, said)


def _on_harmless(outcome: Outcome, said: Said) -> Outcome:
    """Verdicts that were due, by the deadline of a divergence, apart from those that were wrong when they were said."""
    curve = outcome.curve
    due = [v.step for v in said.verdicts if any(_outlasted(e, v.step, tolerance(curve)) for e in curve.events)]
    wrong = [v.step for v in said.verdicts if v.step not in due]
    return replace(outcome, verdict_step=min(wrong, default=None), overdue_step=min(due, default=None))


def _outlasted(event: Event, step: int, patience: int) -> bool:
    """Whether the step is within a spike that has lasted for the patience."""
    return event.kind == "spike" and event.onset + patience <= step <= event.end


def _on_divergence(outcome: Outcome, said: Said, onset: int) -> Outcome:
    """Verdicts that are about the divergence apart from those long before it."""
    curve = outcome.curve
    opens = onset - tolerance(curve)
    early = outcome.verdict_step if outcome.verdict_step is not None and outcome.verdict_step < opens else None
    right = min((v for v in said.verdicts if v.step >= opens), key=lambda v: v.step, default=None)
    if right is None:
        return replace(outcome, verdict_step=None, early_step=early)
    error = abs(right.onset - onset)
    return replace(
        outcome,
        verdict_step=right.step,
        early_step=early,
        delay_steps=right.step - onset,
        in_time=right.step <= deadline(curve),
        onset_error_steps=error,
        onset_error_intervals=error / curve.log_interval,
    )


def timed(outcome: Outcome, knowable_step: int | None = None, together_step: int | None = None) -> Outcome:
    """The outcome of a divergence beside the ideal judge's. Where that knows of none, no verdict is late."""
    step = outcome.verdict_step
    if outcome.is_divergence:
        outcome = replace(outcome, alone_step=knowable_step, together_step=together_step)
    if not outcome.is_divergence or step is None or knowable_step is None:
        return replace(outcome, knowable=knowable_step is not None)
    late = step > max(deadline(outcome.curve), knowable_step)
    return replace(outcome, knowable=True, past_ideal_steps=step - knowable_step, late=late)


def is_scored(curve: Curve) -> bool:
    """Whether there is something to be right or wrong about."""
    return not _unscored(curve)


def _unscored(curve: Curve) -> str:
    """Why there is nothing to be right or wrong about; empty when there is."""
    if curve.label in HARMLESS:
        return ""
    if curve.label not in DIVERGED:
        return "ambiguous"
    onset = onset_of(curve)
    if onset is None:
        return "no onset is labelled"
    losses = list(zip(curve.steps, curve.losses, strict=True))
    if not any(s < onset and v is not None and math.isfinite(v) for s, v in losses):
        return "nothing before the onset to compare with"
    if sum(s >= onset and v is not None for s, v in losses) < ILL_SAMPLES:
        return f"ends within {ILL_SAMPLES} samples of the onset"
    return ""


def _counted(outcome: Outcome, said: Said) -> Outcome:
    """With what is counted on every curve: spikes, time."""
    curve = outcome.curve
    margin = TOLERANCE_INTERVALS * curve.log_interval
    spikes = [e for e in curve.events if e.kind == "spike"]
    about = [s for s in said.spikes if any(_near(e, s[0], margin) for e in curve.events)]
    outcome = replace(
        outcome,
        spikes=len(spikes),
        spikes_seen=sum(any(s[0] <= e.end + margin and s[1] >= e.onset - margin for s in about) for e in spikes),
        samples=said.samples,
        seconds=said.seconds,
    )
    if curve.label not in HARMLESS:
        return outcome
    quiet = [step for step in curve.steps if not any(_near(e, step, margin) for e in curve.events)]
    called = [step for step in quiet if any(first <= step <= last for first, last in said.spikes)]
    return replace(
        outcome,
        false_spikes=len(said.spikes) - len(about),
        quiet_steps=len(quiet) * curve.log_interval,
        called_quiet_steps=len(called) * curve.log_interval,
    )


def _near(event: Event, step: int, margin: int) -> bool:
    return event.onset - margin <= step <= event.end + margin


def stretches(rows: Sequence[int], gap: int = TOLERANCE_INTERVALS) -> tuple[tuple[int, int], ...]:
    """Sorted rows as (first, last) of each stretch; fewer than `gap` rows between two do not part them."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row - found[-1][1] <= gap:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
    return tuple(found)
