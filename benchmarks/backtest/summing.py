"""Outcomes of many curves as one detector's numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .scoring import Outcome, deadline

__all__ = ["Summary", "summary", "wilson"]


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

    overdue: int
    """Harmless curves with a verdict on a spike that had outlasted the deadline, and none that was wrong."""

    late: int
    """After the deadline that the run's own spikes give."""

    late_of_ideal: int
    """After that and after the ideal judge's verdict."""

    unknowable: int
    """Divergences that even the ideal judge does not know of by the log's end."""

    past_ideal_median_steps: float | None
    delay_median_steps: float | None
    delay_max_steps: int | None
    onset_error_median_steps: float | None
    onset_error_median_intervals: float | None
    spikes: int
    spikes_seen: int
    false_spikes_per_10k_steps: float | None
    called_out_share: float | None
    """Share of the steps of stable stretches that it called out."""

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
        overdue=sum(o.overdue_step is not None and not o.unneeded for o in well),
        late=sum(o.in_time is False for o in ill),
        late_of_ideal=sum(o.late for o in ill),
        unknowable=sum(o.knowable is False for o in ill),
        past_ideal_median_steps=_median(o.past_ideal_steps for o in ill),
        delay_median_steps=median(delays) if delays else None,
        delay_max_steps=max(delays, default=None),
        onset_error_median_steps=_median(o.onset_error_steps for o in ill),
        onset_error_median_intervals=_median(o.onset_error_intervals for o in ill),
        spikes=sum(o.spikes for o in mine if not o.unscored),
        spikes_seen=sum(o.spikes_seen for o in mine if not o.unscored),
        false_spikes_per_10k_steps=1e4 * sum(o.false_spikes for o in well) / quiet if quiet else None,
        called_out_share=sum(o.called_quiet_steps for o in well) / quiet if quiet else None,
        us_per_sample=1e6 * sum(o.seconds for o in mine) / samples if samples else None,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None
