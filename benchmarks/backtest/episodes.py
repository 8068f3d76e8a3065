"""The judge's open spikes on a curve, reading by reading: what is known of each, and whether it came back."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.waiting import Moment, moment_of
from sentinel.vocabulary.sample import Sample

from .curves import DIVERGED, HARMLESS, Curve
from .ours import samples_of
from .scoring import Told, onset_of, tolerance

__all__ = ["Spike", "Traced", "traced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One time that the loss left its band."""

    family: str
    moments: tuple[Moment, ...]
    healed_age: float | None
    """Age at which the judge saw it back; None where it was not back by the end of the log, or no episode's end."""

    never: bool | None
    """Whether the run is labelled as diverged there, and the judge's patience or the log ended before it was back.
    None: the label is ambiguous."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A curve, judged live."""

    curve: Curve
    verdicts: tuple[Told, ...]
    """The judge's, by its patience."""

    spikes: tuple[Spike, ...]
    """All but those that began within a divergence that was called."""


def traced(curve: Curve) -> Traced:
    """Sample by sample. An attempt that begins at a step that was passed continues what was known before that step."""
    thresholds = Thresholds()
    series, kept = Series(thresholds, planned=curve.planned), list[Sample]()
    verdicts: list[Told] = []
    spikes: list[Spike] = []
    moments: list[Moment] = []
    episode, called, alarmed = None, False, False
    for sample in samples_of(curve):
        if kept and sample.global_step <= kept[-1].global_step:
            kept = [s for s in kept if s.global_step < sample.global_step]
            series, moments = Series(thresholds, kept, planned=curve.planned), []
        kept.append(sample)
        before = series.alarm
        series.push(sample)
        moment, alarm = moment_of(series), series.alarm
        if alarm is not None and (before is None or before.verdict_step != alarm.verdict_step):
            verdicts.append(Told(step=sample.global_step, onset=alarm.onset_step))
        if series.episode is not episode:
            if moments and not called:
                spikes.append(_spike(curve, moments, sample.global_step, alarmed=alarmed))
            episode, moments, called, alarmed = series.episode, [], before is not None, False
        alarmed = alarmed or alarm is not None
        if moment is not None:
            moments.append(moment)
    if moments and not called:
        spikes.append(_spike(curve, moments, None, alarmed=alarmed))
    return Traced(curve=curve, verdicts=tuple(verdicts), spikes=tuple(spikes))


def _spike(curve: Curve, moments: list[Moment], ended: int | None, *, alarmed: bool) -> Spike:
    last, onset = moments[-1], onset_of(curve)
    never: bool | None = False
    if curve.label not in DIVERGED | HARMLESS:
        never = None
    elif curve.label in DIVERGED and onset is not None and last.step >= onset - tolerance(curve):
        never = ended is None or alarmed
    age = None if ended is None or never else (ended - last.onset_range[1]) / last.pace
    return Spike(family=curve.family, moments=tuple(moments), healed_age=age, never=never)
