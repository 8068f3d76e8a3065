"""What the recovery check makes of whole lists of samples: it takes them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.judge.recovery_check import WINDOW, BestMean, Danger, OldTrend, Recovery, Restart, recovery_of
from sentinel.judge.series import Series
from sentinel.vocabulary.sample import Sample, Validation

__all__ = ["best_mean", "recovery"]


def best_mean(samples: Iterable[Sample], *, full_seqlen: int | None = None) -> float | None:
    """Smallest mean loss over WINDOW neighbouring steps, nats; None when there is no whole window."""
    best = BestMean(WINDOW, full_seqlen)
    for sample in samples:
        best.push(sample)
    return best.value


def recovery(
    before: Iterable[Sample],
    since: Iterable[Sample],
    series: Series,
    danger: Danger,
    *,
    full_seqlen: int | None,
    finished: bool,
    validated_before: Sequence[Validation] = (),
    validated: Sequence[Validation] = (),
) -> Recovery:
    """Whether the attempt whose samples since the restart are `since` has recovered; see recovery_of."""
    restart, old = Restart(danger, full_seqlen), OldTrend.of(before, full_seqlen)
    for sample in since:
        restart.push(sample)
    return recovery_of(old, restart, series, finished=finished, validated_before=validated_before, validated=validated)
