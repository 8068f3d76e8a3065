"""What the run's past says of an onset, as the incident log keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.judge.recovery_check import WINDOW, BestMean
from sentinel.vocabulary.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class OnsetReadings:
    """What the run's past says of the late end of an onset, as `opened` records it; None where it was not reported."""

    onset_tokens: int | None = None
    onset_samples: int | None = None
    batch_samples: int | None = None
    best_mean: float | None = None  # best 20-sample mean of the loss before the early end of the onset, nats


def onset_readings(lineage: Iterable[Sample], onset_range: tuple[int, int], full_seqlen: int | None) -> OnsetReadings:
    """Goes once through the attempt's line of descent, which is ordered by step."""
    best, at, (early, late) = BestMean(WINDOW, full_seqlen), None, onset_range
    for sample in lineage:
        if sample.global_step < early:
            best.push(sample)
        elif sample.global_step == late:
            at = sample
    if at is None:
        return OnsetReadings(best_mean=best.value)
    position = {"onset_tokens": at.consumed_tokens, "onset_samples": at.consumed_samples}
    return OnsetReadings(**position, batch_samples=at.global_batch_samples, best_mean=best.value)
