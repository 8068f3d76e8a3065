"""Too many updates skipped in a row: the weights do not change any more.

25 skipped updates in a row; 8 where the loss is outside its band; 5 (patience_samples) where it is no number in any of
them.
"""

from __future__ import annotations

import math

from sentinel.judge.detectors.detector import Detector, Finding, Known
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import ScrapedSample

_LEAST = 2  # Skipped updates that are a row
_AGREED = 0.3  # Share of the limit that is enough where the loss is out of its band


class SkippedUpdates(Detector):
    """Counts skipped updates, whether the trainer reports them or only its loss scale shows them."""

    only_unusual = True

    def __init__(self, thresholds: Thresholds) -> None:
        self._limit = thresholds.skipped_run_steps
        self._limit_outside, self._limit_nan = (
            min(self._limit, max(_LEAST, at_least))
            for at_least in (math.ceil(_AGREED * self._limit), thresholds.patience_samples)
        )
        self._scale: float | None = None
        self._not_finite = 0  # Losses among them that were measured, and no numbers
        self.run = 0  # Updates skipped in a row, up to now

    def push(self, samples: Samples, known: Known) -> Finding | None:
        """Skipped: the sample says so, or its loss is not a number (or missing) and the loss scale fell."""
        before, scale = self._scale, samples.readings.get("loss_scale")
        self._scale = before if scale is None else scale
        fell = before is not None and scale is not None and scale < before
        lost = fell and (not samples.losses or not math.isfinite(samples.losses[-1]))
        self.excludes = samples.skipped or lost
        if not self.excludes:
            self._end()
            return None
        step = samples.steps[-1]
        self._not_finite += bool(samples.losses) and not math.isfinite(samples.losses[-1])
        self._count(1, step if samples.after is None else min(samples.after + 1, step), step)
        limit = self._limit if known.baseline.episode is None else self._limit_outside
        if self._not_finite == self.run:
            limit = min(limit, self._limit_nan)  # the same weights, batch after batch: no scale makes it a number
        if self.run < limit or self.onset_range is None:
            return None
        reason = f"the optimizer has skipped {self.run} updates in a row: the weights do not change"
        return Finding(onset_range=self.onset_range, reason=reason)

    def push_unseen(self, sample: ScrapedSample, known: Known) -> Finding | None:
        first = sample.global_step - sample.unseen_steps
        if sample.unseen_skipped >= sample.unseen_steps:
            self._count(sample.unseen_steps, first, first)
        else:
            self._end()
        return None

    def _count(self, steps: int, early: int, late: int) -> None:
        self.run += steps
        if self.onset_range is None:
            self.onset_range = (early, late)

    def _end(self) -> None:
        self.run, self._not_finite, self.onset_range = 0, 0, None
