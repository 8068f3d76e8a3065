"""A loss so far above its level that it needs no wait to be a divergence.

Two losses at 100 times the level (outright_factor) and above hopeless_loss. The highest labelled curve that came back
reached 6.4 times.
"""

from __future__ import annotations

from sentinel.judge.detectors.detector import Detector, Finding, Known
from sentinel.judge.readings import Samples

_FAR_SAMPLES = 2  # Losses in a row that must be far above the level: one could be a single broken batch


class ImmediateDivergence(Detector):
    """Below a uniform guess a multiple means little: the loss of an easy task goes from 0.001 to 0.1 and back."""

    only_unusual = True

    _run = 0

    def push(self, samples: Samples, known: Known) -> Finding | None:
        episode, loss = known.baseline.episode, samples.losses[-1]
        factor, guess = known.thresholds.outright_factor, known.thresholds.hopeless_loss
        if episode is None or not (loss > factor * episode.level > 0 and loss > guess):
            self._run = 0
            return None
        self._run += 1
        if self._run < _FAR_SAMPLES:
            return None
        reason = f"{episode.left_band} and stands at {loss:.4g}, {loss / episode.level:.0f} times its level"
        return Finding(onset_range=episode.onset_range, reason=reason)
