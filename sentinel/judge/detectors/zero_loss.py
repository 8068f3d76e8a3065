"""A loss of exactly 0.0: nan, as a trainer logs it that filters nan.

Loss exactly 0.0 five times in a row (patience_samples) after at least 8 losses of 0.1 or more.

Source: Hugging Face's logging_nan_inf_filter.
"""

from __future__ import annotations

import math

from sentinel.judge.detectors.detector import Detector, Finding, Known
from sentinel.judge.events import EventKind
from sentinel.judge.readings import Samples

_FAR_FROM_ZERO = 0.1  # Nats. A log of four decimals shows 0.0 below 0.00005, three decades further down
_BEGUN_SAMPLES = 8  # Losses before a zero can be impossible: an easy task falls to nothing in its first few


class ZeroLoss(Detector):
    """Losses of exactly 0.0 where no loss before was below 0.1. Hugging Face's Trainer leaves a loss that is not a
    number out of its mean (`logging_nan_inf_filter`, on by default), and logs 0.0 where all were left out; its versions
    before 4.38 log no gradient norm that would show nan. A zero or two are batches without labels."""

    _smallest = math.inf
    _samples = _run = 0

    def push(self, samples: Samples, known: Known) -> Finding | None:
        smallest = min(samples.losses)
        self.excludes = smallest == 0.0 and self._smallest >= _FAR_FROM_ZERO and self._samples >= _BEGUN_SAMPLES
        if not self.excludes:
            if smallest < self._smallest:
                self._smallest = smallest
            self._samples += len(samples.losses)
            self.onset_range, self._run = None, 0
            return None
        step, after = samples.steps[-1], samples.after
        if self.onset_range is None:
            self.onset_range = (step if after is None else min(after + 1, step), step)
        self._run += 1
        if self._run < known.thresholds.patience_samples:
            return None
        reason = (
            f"the loss is exactly 0.0 since step {self.onset_range[1]}, and no loss before it was near 0: "
            "some trainers log nan as 0.0"
        )
        return Finding(onset_range=self.onset_range, reason=reason, kind=EventKind.NAN)
