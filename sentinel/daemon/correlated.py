"""Which signals go with the loss ratio, and how many steps ahead, while something is wrong.

Only then, of the last 512 samples, and at most once a minute: it takes 50 ms of a core and half a second to load.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sentinel.judge.history import LAST_SAMPLES
from sentinel.judge.readings import BANDED
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.look import Look
from sentinel.vocabulary.sample import Sample

__all__ = ["Correlated", "Leads", "leads"]

_LEAST_SAMPLES = 64
_AGAIN_S = 60.0
_LOOKED_AT = (VerdictKind.SPIKE, VerdictKind.DIVERGED)


class Leads(NamedTuple):
    """One signal against the loss ratio."""

    signal: str
    lag: int
    """Steps that the signal is ahead of the loss ratio; below 0 it comes later."""

    pearson_r: float


def leads(samples: list[Sample]) -> tuple[Leads, ...]:
    """Of each signal that may lead, where its correlation is strongest; none for fewer than 64 samples."""
    if len(samples) < _LEAST_SAMPLES:
        return ()
    from sentinel.judge.analysis.correlation.columns import correlate  # here: a run that is well needs no scipy

    best = {p.signal: p.row(p.best) for p in correlate(samples).profiles if p.best is not None}
    return tuple(
        Leads(signal, best[signal].lag, best[signal].pearson_r)
        for signal in BANDED
        if signal in best and math.isfinite(best[signal].pearson_r)
    )


class Correlated:
    """Keeps the last answer, and knows when it is time for the next."""

    def __init__(self) -> None:
        self._kept: tuple[Leads, ...] = ()
        self._since: tuple[int, float] | None = None

    def of(self, look: Look) -> tuple[Leads, ...]:
        """Of the newest attempt; nothing while nothing is wrong."""
        attempt, now_unix_s = look.history.latest, look.run.now_unix_s
        if attempt is None or look.verdict.kind not in _LOOKED_AT:
            self._kept, self._since = (), None
            return ()
        if self._since is None or self._since[0] != attempt.number or now_unix_s - self._since[1] >= _AGAIN_S:
            self._kept = leads(attempt.samples[-LAST_SAMPLES:])
            if len(attempt.samples) >= _LEAST_SAMPLES:  # else there is an answer within a few steps
                self._since = (attempt.number, now_unix_s)
        return self._kept
