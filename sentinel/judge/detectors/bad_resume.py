"""A run that is first seen in its middle with the loss of an untrained model: it did not resume from what it saved.

First seen past step 1,000, with three losses of 10.8 = ln(50257) or more.
"""

from __future__ import annotations

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds

_MATURE_STEPS = 1000  # Steps after which a model that knows no more than a uniform guess is not one at its beginning
_FIRST_SAMPLES = 3  # Losses that must all be as bad as a guess: one could be a batch of another kind


class BadResume(Detector):
    only_unusual = True

    def __init__(self, thresholds: Thresholds) -> None:
        self._limit = thresholds.hopeless_loss
        self._first_step: int | None = None
        self._as_bad = 0
        self._samples = 0

    def push(self, samples: Samples, known: Known) -> Finding | None:
        if self._samples == _FIRST_SAMPLES:
            return None
        self._samples += 1
        step, loss = samples.steps[-1], samples.losses[-1]
        self._first_step = first = step if self._first_step is None else self._first_step
        self._as_bad += loss >= self._limit and step >= _MATURE_STEPS
        if self._as_bad < _FIRST_SAMPLES:
            return None
        reason = (
            f"the run is first seen at step {first} with a loss of {loss:.2f}, no better than a uniform guess: "
            "it did not resume from the state that it had saved"
        )
        return Finding(onset_range=(first, first), reason=reason, supersedes=True)

    def persists(self, block: Block) -> bool:
        return self._as_bad == _FIRST_SAMPLES and block.median >= self._limit
