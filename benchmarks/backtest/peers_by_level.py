"""Peers that compare a reading with one number that they carry along. What `push` means is in peers.py."""

from __future__ import annotations

import math
from typing import ClassVar

from .reading import Reading

__all__ = ["AxolotlWatchdog", "FlagscaleSpiky", "LossRatio", "MegatronRerun", "MetaseqEwm", "ZClip"]

LOSS = frozenset({"loss"})


class LossRatio:
    """loss / min(previous losses) > 1.2. nan and inf are the worst ratio, and never the minimum.

    Source: Li, Zhang & He 2022, Table 1 (arXiv:2108.06084). The minimum travels in the checkpoint's client state.
    """

    reads: ClassVar[frozenset[str]] = LOSS
    survives_restart: ClassVar[bool] = True
    limit = 1.2

    def __init__(self) -> None:
        self._least = math.inf

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        if not math.isfinite(loss):
            return True
        fires = loss / self._least > self.limit
        self._least = min(self._least, loss)
        return fires


class MegatronRerun:
    """A loss of at least ten times the largest of the first hundred. nan and inf are ignored.

    Megatron stops at those by a check of its own (--check-for-nan-in-loss-and-grad), which is not this rule.
    Source: NVIDIA/Megatron-LM, core/rerun_state_machine.py, is_unexpectedly_large; pretrain_gpt.py, SPIKY_LOSS_FACTOR.
    """

    reads: ClassVar[frozenset[str]] = LOSS
    survives_restart: ClassVar[bool] = False
    factor, first = 10.0, 100

    def __init__(self) -> None:
        self._largest = 0.0
        self._count = 0

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None or not math.isfinite(loss):
            return False
        if self._count < self.first:
            self._count += 1
            self._largest = max(self._largest, abs(loss))
            return False
        return abs(loss) >= self.factor * self._largest


class ZClip:
    """A gradient norm of more than 2.5 deviations above its moving mean (25 values of warmup, then alpha 0.97).

    Mean and variance learn the clipped norm: mean + 2.5 std / (z / 2.5). A nan makes both nan for good.
    Source: bluorion-com/ZClip, zclip.py, ZClip (mode zscore, adaptive_scaling).
    """

    reads: ClassVar[frozenset[str]] = frozenset({"grad_norm"})
    survives_restart: ClassVar[bool] = False
    alpha, threshold, warmup, eps = 0.97, 2.5, 25, 1e-6

    def __init__(self) -> None:
        self._buffer: list[float] = []
        self._mean = self._variance = math.nan

    def push(self, reading: Reading) -> bool:
        grad_norm = reading.grad_norm
        if grad_norm is None:
            return False
        if len(self._buffer) < self.warmup:
            self._buffer.append(grad_norm)
            if len(self._buffer) == self.warmup:
                self._mean = sum(self._buffer) / self.warmup
                self._variance = sum((x - self._mean) ** 2 for x in self._buffer) / self.warmup
            return False
        deviation = math.sqrt(self._variance)
        z = (grad_norm - self._mean) / (deviation + self.eps)
        fires = z > self.threshold
        learned = self._mean + self.threshold * deviation / (z / self.threshold) if fires else grad_norm
        self._mean = self.alpha * self._mean + (1 - self.alpha) * learned
        self._variance = self.alpha * self._variance + (1 - self.alpha) * (learned - self._mean) ** 2
        return fires


class FlagscaleSpiky:
    """A loss at least 20 % above the last one that did not fire. inf fires; nan becomes `last`, and the next one too.

    Source: FlagOpen/FlagScale, train/spiky_loss.py, SpikyLossDetector.
    """

    reads: ClassVar[frozenset[str]] = LOSS
    survives_restart: ClassVar[bool] = False
    threshold = 0.2

    def __init__(self) -> None:
        self._last: float | None = None

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        last = math.nan if self._last is None else self._last
        judged = not (math.isnan(loss) or math.isnan(last))
        if judged and (math.isinf(loss) or math.isinf(last) or (loss - last) / last >= self.threshold):
            return True
        self._last = loss
        return False


class MetaseqEwm:
    """loss / its exponentially weighted mean (span 9) > 1.2; the mean learns only what does not fire.

    A nan is not above anything, enters the mean, and silences it for good.
    Source: facebookresearch/metaseq, trainer.py, skip_spike.
    """

    reads: ClassVar[frozenset[str]] = LOSS
    survives_restart: ClassVar[bool] = False
    span, ratio = 9, 1.2

    def __init__(self) -> None:
        self._mean: float | None = None

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        mean = loss if self._mean is None else self._mean
        if mean != 0 and loss / mean > self.ratio:
            return True
        alpha = 2 / (self.span + 1)
        self._mean = (1 - alpha) * mean + alpha * loss
        return False


class AxolotlWatchdog:
    """The third loss in a row above a threshold that has no default: here twice the first loss.

    That is what its configuration reference recommends ("a good estimate is ~2 times the loss at the start of
    training"); its examples' fixed 5.0 fires at the third step of every pre-training from scratch. A log that starts in
    mid-run gives it a lower threshold than its user would have: a kindness. nan is not above anything.
    Source: axolotl-ai-cloud/axolotl, utils/callbacks, LossWatchDogCallback (patience 3).
    """

    reads: ClassVar[frozenset[str]] = LOSS
    survives_restart: ClassVar[bool] = True
    patience, factor = 3, 2.0

    def __init__(self) -> None:
        self._threshold: float | None = None
        self._violations = 0

    def push(self, reading: Reading) -> bool:
        loss = reading.loss
        if loss is None:
            return False
        if self._threshold is None and math.isfinite(loss):
            self._threshold = self.factor * loss
        above = self._threshold is not None and loss > self._threshold
        self._violations = self._violations + 1 if above else 0
        return self._violations >= self.patience
