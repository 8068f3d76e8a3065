"""A run that did not resume from what it had saved: its loss is that of its own beginning again.

After a resume: three losses as high as the run's first three, where the level before was a tenth below them or more.
Without losses from before the resume there is no such verdict: a large loss may be a sum, or fall from a large value.
"""

from __future__ import annotations

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known
from sentinel.judge.readings import Samples

_FIRST_SAMPLES = 3  # Losses that must all be as bad as the first ones: one could be a batch of another kind
_LEARNED = 0.9  # Share of the first losses below which the level was: else there was nothing to lose


class BadResume(Detector):
    only_unusual = True

    def _forget(self) -> None:
        self._first: list[tuple[int, float]] = []  # (step, loss) of the run's first
        self._resumed_step: int | None = None
        self._resumed: list[float] = []  # The first losses after the newest resume
        self._level = 0.0  # before that resume, nats
        self._as_bad = False

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        seen = known.resumed_step == self._resumed_step
        return seen and (self._resumed_step is None or len(self._resumed) == _FIRST_SAMPLES)

    def push(self, samples: Samples, known: Known) -> Finding | None:
        step, loss = samples.steps[-1], samples.losses[-1]
        if len(self._first) < _FIRST_SAMPLES:
            self._first.append((step, loss))
        resumed = known.resumed_step
        if resumed is None:
            return None
        if resumed != self._resumed_step:
            band = known.baseline.band
            self._resumed_step, self._level = resumed, band.level if band.ready else 0.0
            self._resumed = []
        if len(self._resumed) == _FIRST_SAMPLES:
            return None
        self._resumed.append(loss)
        return self._compared(resumed) if len(self._resumed) == _FIRST_SAMPLES else None

    def _compared(self, resumed: int) -> Finding | None:
        first, now = min(loss for _, loss in self._first), min(self._resumed)
        if not 0 < self._level <= _LEARNED * first or now < first:
            return None
        self._as_bad = True
        reason = (
            f"the first losses after the resume at step {resumed} are {now:.2f} or more, as high as the run's first "
            f"({first:.2f} at step {self._first[0][0]}), and the level before was {self._level:.2f}: "
            "it did not resume from the state that it had saved"
        )
        return Finding(onset_range=(resumed, resumed), reason=reason, supersedes=True)

    def persists(self, block: Block) -> bool:
        return self._as_bad and block.median >= min(loss for _, loss in self._first)
