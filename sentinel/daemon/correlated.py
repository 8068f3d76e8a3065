"""The signals that correlate with the loss ratio, and their lags, during a spike or a divergence.

Computed from the last 512 samples, once a minute at most: it takes 50 ms of a core, and half a second to import.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sentinel.judge.history import LAST_SAMPLES
from sentinel.judge.readings import BANDED
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.look import Look
from sentinel.vocabulary.sample import Sample

_LEAST_SAMPLES = 64
_INTERVAL_S = 60.0
_VERDICTS = (VerdictKind.SPIKE, VerdictKind.DIVERGED)


class Leads(NamedTuple):
    """One signal against the loss ratio."""

    signal: str
    lag: int
    """Steps by which the signal is ahead of the loss ratio; negative where it is behind."""

    pearson_r: float


def leads(samples: list[Sample]) -> tuple[Leads, ...]:
    """The strongest correlation of each signal that may lead; none for fewer than 64 samples."""
    if len(samples) < _LEAST_SAMPLES:
        return ()
    from sentinel.judge.analysis.correlation.columns import correlate  # only then: a healthy run needs no scipy

    best = {p.signal: p.row(p.best) for p in correlate(samples).profiles if p.best is not None}
    return tuple(
        Leads(signal, best[signal].lag, best[signal].pearson_r)
        for signal in BANDED
        if signal in best and math.isfinite(best[signal].pearson_r)
    )


class Correlated:
    """Computes `leads` at intervals, and keeps the last result."""

    def __init__(self) -> None:
        self._last: tuple[Leads, ...] = ()
        self._since: tuple[int, float] | None = None

    def of(self, look: Look) -> tuple[Leads, ...]:
        """Correlations of the newest attempt; none while the verdict is neither spike nor diverged."""
        attempt, now_unix_s = look.history.latest, look.run.now_unix_s
        if attempt is None or look.verdict.kind not in _VERDICTS:
            self._last, self._since = (), None
            return ()
        if self._since is None or self._since[0] != attempt.number or now_unix_s - self._since[1] >= _INTERVAL_S:
            self._last = leads(attempt.samples[-LAST_SAMPLES:])
            if len(attempt.samples) >= _LEAST_SAMPLES:  # fewer samples: try again at the next turn
                self._since = (attempt.number, now_unix_s)
        return self._last
