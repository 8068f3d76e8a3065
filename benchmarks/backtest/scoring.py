"""What a detector said of a curve, against what a person says that it is. Pure; docs/BACKTEST.md tells the rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .curves import DIVERGED, HARMLESS, Curve, Event

__all__ = ["Outcome", "Said", "Summary", "Told", "deadline", "onset_of", "score", "stretches", "summary", "wilson"]

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

    delay_steps: int | None = None
    in_time: bool | None = None
    onset_error_steps: int | None = None
    onset_error_intervals: float | None = None
    spikes: int = 0
    spikes_seen: int = 0
    false_spikes: int = 0
    quiet_steps: int = 0
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
    return _counted(outcome, said)


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
    spikes = [e for e in curve.events if e.kind == "spike"]
    margin = TOLERANCE_INTERVALS * curve.log_interval
    false = quiet = 0
    if curve.label in HARMLESS:
        false = sum(not any(_overlaps(e, *s, margin) for e in curve.events) for s in said.spikes)
        quiet = sum(not any(_overlaps(e, step, step, margin) for e in curve.events) for step in curve.steps)
    return replace(
        outcome,
        spikes=len(spikes),
        spikes_seen=sum(any(_overlaps(e, *s, curve.log_interval) for s in said.spikes) for e in spikes),
        false_spikes=false,
        quiet_steps=quiet * curve.log_interval,
        samples=said.samples,
        seconds=said.seconds,
    )


def _overlaps(event: Event, first: int, last: int, margin: int) -> bool:
    return first <= event.end + margin and last >= event.onset - margin


def stretches(rows: Sequence[int], gap: int = 10) -> tuple[tuple[int, int], ...]:
    """Sorted rows as (first, last) of each stretch; fewer than `gap` rows between two do not part them."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row - found[-1][1] <= gap:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
    return tuple(found)


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95 % interval of a share; (0, 1) of nothing. Source: Wilson 1927, JASA 22:209."""
    if of == 0:
        return (0.0, 1.0)
    z, p = 1.959963984540054, hits / of
    centre = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return (max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One detector on many curves."""

    detector: str
    divergences: int
    missed: int
    missed_nan: int
    """Of the missed, those labelled nan."""

    missed_cut_short: int
    """Of the missed, those whose log ends before the deadline."""

    missed_not_applicable: int
    """Of the missed, those whose log lacks what the detector reads."""

    harmless: int
    harmless_not_applicable: int
    unneeded_harmless: int
    unneeded_early: int
    """Divergences with a verdict long before the onset."""

    late: int
    delay_median_steps: float | None
    delay_max_steps: int | None
    onset_error_median_steps: float | None
    onset_error_median_intervals: float | None
    spikes: int
    spikes_seen: int
    false_spikes_per_10k_steps: float | None
    us_per_sample: float | None

    @property
    def unneeded(self) -> int:
        return self.unneeded_harmless + self.unneeded_early

    @property
    def wrong(self) -> int:
        """What detectors are ranked by."""
        return self.missed + self.unneeded


def summary(detector: str, outcomes: Iterable[Outcome]) -> Summary:
    """The detector's outcomes together."""
    mine = [o for o in outcomes if o.detector == detector]
    ill = [o for o in mine if o.is_divergence]
    well = [o for o in mine if o.is_harmless]
    missed = [o for o in ill if o.missed]
    delays = [o.delay_steps for o in ill if o.delay_steps is not None]
    quiet = sum(o.quiet_steps for o in well if o.applicable)
    samples = sum(o.samples for o in mine)
    return Summary(
        detector=detector,
        divergences=len(ill),
        missed=len(missed),
        missed_nan=sum(o.curve.label == "nan" for o in missed),
        missed_cut_short=sum(o.curve.steps[-1] < deadline(o.curve) for o in missed),
        missed_not_applicable=sum(not o.applicable for o in missed),
        harmless=len(well),
        harmless_not_applicable=sum(not o.applicable for o in well),
        unneeded_harmless=sum(o.unneeded for o in well),
        unneeded_early=sum(o.unneeded for o in ill),
        late=sum(o.in_time is False for o in ill),
        delay_median_steps=median(delays) if delays else None,
        delay_max_steps=max(delays, default=None),
        onset_error_median_steps=_median(o.onset_error_steps for o in ill),
        onset_error_median_intervals=_median(o.onset_error_intervals for o in ill),
        spikes=sum(o.spikes for o in mine if not o.unscored),
        spikes_seen=sum(o.spikes_seen for o in mine if not o.unscored),
        false_spikes_per_10k_steps=1e4 * sum(o.false_spikes for o in well) / quiet if quiet else None,
        us_per_sample=1e6 * sum(o.seconds for o in mine) / samples if samples else None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
