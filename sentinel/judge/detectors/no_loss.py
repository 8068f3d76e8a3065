"""Readings that are no training loss: nothing is known of the run from them, and the verdict is blind.

Exactly the same number 16 times in a row: from the first reading on, or with five significant digits or more. Below 0
in each of the first three readings and in every one since, where `[judge] negative_loss` does not allow it: a cross
entropy is not.
"""

from __future__ import annotations

from sentinel.judge.detectors.detector import Detector, Finding, Known, LossBaseline
from sentinel.judge.readings import Samples

_SAME_SAMPLES = 16  # As many as a noise band needs: before it the verdict is warming up
_NEGATIVE_SAMPLES = 3
_DIGITS = 5  # Significant digits that two losses of a training do not share 16 times in a row
_WHERE = (
    "a pipeline rank without the last stage prints such a number: read the log of a rank that has the loss (TorchTitan "
    "names it in its first lines, and shows it where LOG_RANK has it), or name the loss with --loss or [source] loss"
)


class NoLoss(Detector):
    """Makes no finding, and lets no other detector learn from losses that were all below 0."""

    def _forget(self) -> None:
        self._value: float | None = None
        self._since: int | None = None  # The first step with that number
        self._same = 0
        self._is_first = True  # Whether the number is the one that the readings began with
        self._negative: int | None = 0  # Losses below 0 since the first reading; None once one was not

    def push(self, samples: Samples, known: Known) -> Finding | None:
        for step, loss in zip(samples.steps, samples.losses, strict=True):
            if loss == self._value:
                self._same += 1
            else:
                self._is_first = self._value is None
                self._value, self._since, self._same = loss, step, 1
        if self._negative is not None:
            below = not known.thresholds.negative_loss and max(samples.losses, default=-1.0) < 0
            self._negative = self._negative + len(samples.losses) if below else None
            self.excludes = below
        return None

    @property
    def reason(self) -> str | None:
        """Why the readings are no loss, as a sentence; None where they may be one."""
        if self._value is None or self._since is None:
            return None
        if self._negative is not None and self._negative >= _NEGATIVE_SAMPLES:
            return (
                f"the loss is {self._value:.5g}, and no reading since the first was 0 or above: a cross entropy is "
                f"never negative; {_WHERE}; a loss that may be negative: [judge] negative_loss = true"
            )
        if self._same < _SAME_SAMPLES or not (self._is_first or _digits(self._value) >= _DIGITS):
            return None
        return (
            f"the loss is exactly {self._value:.8g} at each of the {self._same} readings since step {self._since}: it "
            f"is not the loss of a training; {_WHERE}"
        )


def why_no_loss(baseline: LossBaseline) -> str | None:
    """Why the readings are no training loss, as a sentence; None where they may be one."""
    return next(detector.reason for detector in baseline.detectors if isinstance(detector, NoLoss))


def _digits(value: float) -> int:
    """Significant digits."""
    return len(f"{abs(value):.15g}".partition("e")[0].replace(".", "").strip("0"))
