"""nan or inf that has reached the weights.

Adam's variance is nan, or the loss is not finite twice in a row without a skipped update. Where the loss
climbed before, by 3 + m sigma of a slow climb (two blocks counted back from the newest loss, or the newest block of any
scale), the onset is the climb's.
"""

from __future__ import annotations

import math

from sentinel.judge.detectors.detector import Detector, Finding, Known
from sentinel.judge.events import EventKind
from sentinel.judge.readings import Samples
from sentinel.vocabulary.sample import ScrapedSample


class NotFinite(Detector):
    """A nan of Adam's variance is certain at once. Of two losses in a row the second was computed with weights that are
    nan; one alone, and then a finite one: the weights were not reached."""

    only_unusual = True
    _samples = 0

    def push(self, samples: Samples, known: Known) -> Finding | None:
        if not samples.losses:
            self.excludes = True
            return None
        variance = samples.readings.get("adam_variance_l1")
        variance_nan = variance is not None and math.isnan(variance)
        return self._take(samples.steps[-1], samples.losses[-1], variance_nan, samples.after, known)

    def push_unseen(self, sample: ScrapedSample, known: Known) -> Finding | None:
        if sample.unseen_nonfinite > sample.unseen_skipped:
            return self._take(sample.global_step - sample.unseen_nonfinite, math.nan, False, known.last_step, known)
        self.excludes = self._samples > 0
        return None

    def _take(self, step: int, loss: float, variance_nan: bool, after: int | None, known: Known) -> Finding | None:
        self.excludes = variance_nan or not math.isfinite(loss)
        if not self.excludes:
            self.onset_range, self._samples = None, 0
            return None
        if self.onset_range is None:
            self.onset_range = (step if after is None else min(after + 1, step), step)
        self._samples += 1
        if (not variance_nan and self._samples < 2) or (known.alarm and known.alarm.kind is EventKind.NAN):
            return None
        what = "Adam's variance is nan" if variance_nan else "the loss is not a number"
        reason = f"{what} since step {self.onset_range[1]}: nan is in the weights"
        return Finding(onset_range=self.onset_range, reason=reason, kind=EventKind.NAN, supersedes=True)
