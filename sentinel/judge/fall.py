"""A sudden fall of the loss, which is believed only when it lasts."""

from __future__ import annotations

from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.thresholds import Thresholds

__all__ = ["SuddenFall"]

_SUDDEN = 0.15
"""Share of the loss that a block falls by at once to be doubted: more than learning does in 8 samples, once begun."""


class SuddenFall:
    """Data that repeats itself makes the loss fall at once, and be back at its old level soon: no divergence.

    While it is doubted the noise band learns nothing; after a patience it is believed, and the band begins anew.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._sigmas = thresholds.band_sigmas
        self._patience_steps = thresholds.patience_steps
        self.clear()

    def clear(self) -> None:
        """Forgets everything: what comes is not comparable with what was."""
        self._before: float | None = None
        self._since: int | None = None

    def doubted(self, median: float, first_step: int, last_step: int, band: NoiseBand) -> bool:
        """Whether the block with this median is part of a fall that has not lasted for a patience yet."""
        before, self._before = self._before, median
        if before is None or not band.ready:
            return False
        noise = self._sigmas * band.sigma / 2  # a median of 8 has less than half the noise of one
        if self._since is None and before - median > max(noise, _SUDDEN * abs(before)):
            self._since = first_step
        if self._since is None:
            return False
        if median > band.level - _SUDDEN / 2 * abs(band.level):
            self._since = None
        elif last_step - self._since >= self._patience_steps:
            self._since = None
            band.clear()
        return self._since is not None
