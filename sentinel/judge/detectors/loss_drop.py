"""A sudden drop of the loss: learned from only once it has lasted."""

from __future__ import annotations

from sentinel.judge.detectors.detector import Block, Detector, Known, Reset
from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.thresholds import Thresholds

_SUDDEN = 0.15  # Share of the loss that a block drops by at once to be doubted: more than learning does in 8 samples


class LossDrop(Detector):
    """Data that repeats itself makes the loss drop at once and return to its old level soon: that is no divergence.
    While the drop is doubted the noise band learns nothing; after a patience it is accepted, and the band begins
    anew."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._sigmas = thresholds.band_sigmas
        self._patience_steps = thresholds.patience_steps
        self.reset(Reset.SETTINGS)

    def reset(self, why: Reset) -> None:
        if why is Reset.SETTINGS:
            self._before: float | None = None
            self._since: int | None = None

    def learn(self, block: Block, known: Known) -> None:
        """Pauses the band while the block is part of a drop that has not lasted for a patience yet."""
        known.band_paused = known.baseline.episode is None and self._doubted(block, known.baseline.band)

    def _doubted(self, block: Block, band: NoiseBand) -> bool:
        median = block.median
        before, self._before = self._before, median
        if before is None or not band.ready:
            return False
        noise = self._sigmas * band.sigma / 2  # a median of 8 has less than half the noise of one
        if self._since is None and before - median > max(noise, _SUDDEN * abs(before)):
            self._since = block.first_step
        if self._since is None:
            return False
        if median > band.level - _SUDDEN / 2 * abs(band.level):
            self._since = None
        elif block.last_step - self._since >= self._patience_steps:
            self._since = None
            band.clear()
        return self._since is not None
