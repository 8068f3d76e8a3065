"""A rise within a log's first losses, before slow climbs have a noise: a log of one line in 100 steps has few losses.

Within the first 96 losses: eight in a row, for the patience, above the best median of five by 6 sigma, 2 %, and 1.5
times the highest rise that came back.
"""

from __future__ import annotations

import math
from itertools import pairwise

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.detectors.episode import what_denser_gives
from sentinel.judge.noise_band import BLOCK, median, robust_sigma
from sentinel.judge.readings import Samples

_MOST_SAMPLES = 12 * BLOCK  # From there on `SlowClimb` has the noise of its blocks
_BEST_OF = 5  # Neighbouring losses whose median is the level
_LEAST_SAMPLES = 2 * _BEST_OF  # Losses before the rise without which its noise is unknown
_NOISE_SAMPLES = 16  # Losses before the rise that the noise is taken from
_LEAST_ABOVE = BLOCK  # Losses in a row that must be above
_WANDERS = 1 / 3  # Share of the highest rise from any loss that counts as its wandering, if the band knows of as much
_HIGHER = 1.5  # Times the highest rise that came back


class EarlyRise(Detector):
    """best = the smallest median of five neighbouring losses. A rise: eight losses in a row, for the patience, above
    best + max(6 sigma, 2 % of it, 1.5 times the highest rise that came back). sigma = `robust_sigma` of the differences
    of neighbours, the fall taken out; or the band's, as far as a third of the highest rise from any loss before: a loss
    that bends as it falls does not wander."""

    only_unusual = True  # once the first losses are past; until then they come one at a time

    def reset(self, why: Reset) -> None:
        if why in (Reset.SETTINGS, Reset.LEVEL):
            self._forget()

    def _forget(self) -> None:
        self._losses: list[float] = []  # Those before the run and in it
        self._steps: list[int] = []
        self._best = self._edge = math.inf
        self._lowest, self._risen = math.inf, 0.0  # The smallest loss, and how far one was above one before it
        self._above = 0  # Losses in a row above the edge
        self._highest = self._came_back = 0.0  # How high the run is above the best, and how high one was that came back

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        return len(self._losses) == _MOST_SAMPLES

    def push(self, samples: Samples, known: Known) -> Finding | None:
        if len(self._losses) == _MOST_SAMPLES:
            return None
        for step, loss in zip(samples.steps, samples.losses, strict=True):
            self._take(step, loss, known)
        if known.alarm is not None or self._above < _LEAST_ABOVE:
            return None
        first = self._steps[-self._above]
        spacing = (self._steps[-1] - first) / (self._above - 1)
        if self._steps[-1] - first + spacing / 2 < known.thresholds.patience_steps:
            return None
        reason = (
            f"the last {self._above} losses are {min(self._losses[-self._above :]):.3f} or more, from step {first} on: "
            f"the best five before are at {self._best:.3f}, and it does not come back"
            f"{what_denser_gives(first, self._steps[-1], self._above, known.patience_steps, known.thresholds)}"
        )
        return Finding(onset_range=(self._steps[-self._above - 1] + 1, first), reason=reason)

    def _take(self, step: int, loss: float, known: Known) -> None:
        self._losses.append(loss)
        self._steps.append(step)
        edge = self._best + max(self._edge, known.regime.widened * abs(self._best))
        if loss > edge:
            self._above += 1
            self._highest = max(self._highest, loss - self._best)
            return
        if self._above:
            self._came_back = max(self._came_back, self._highest)
        self._above, self._highest = 0, 0.0
        self._lowest = min(self._lowest, loss)
        self._risen = max(self._risen, loss - self._lowest)
        if len(self._losses) < _LEAST_SAMPLES:
            return
        self._best = min(self._best, median(self._losses[-_BEST_OF:]))
        falls = [b - a for a, b in pairwise(self._losses[-_NOISE_SAMPLES:])]
        usual = median(falls)
        sigma = robust_sigma([abs(fall - usual) for fall in falls])
        sigma = max(sigma, min(known.baseline.band.sigma, _WANDERS * self._risen))
        t = known.thresholds
        floor = max(t.band_floor, t.climb_tolerance)
        self._edge = max(t.climb_sigmas * sigma, floor * abs(self._best), _HIGHER * self._came_back)

    def persists(self, block: Block) -> bool:
        return self._above >= _LEAST_ABOVE and block.median > self._best + self._edge
