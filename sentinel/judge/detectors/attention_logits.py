"""Attention logits: the largest, where the trainer gives it, has passed its limit. It has no findings and never raises
the alarm: it is told, a checkpoint is pinned, and a save is asked for where `[policy] warn` says so.

The limit is 100, and after that twice the logit that passed it; it begins anew with each attempt. With such logits the
softmax has one key alone. Source: Kimi K2 clips at 100 (arXiv:2507.20534). A trend says nothing: healthy ones rise.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known
from sentinel.judge.noise_band import BLOCK
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds

LIMIT = 100.0  # Kimi K2 clips at it
_PASSES_SAMPLES = 256  # without a logit above the limit for so long, a warning has passed
_KEPT = 64  # warnings that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitWarning:
    since_step: int  # first step of the block in which the limit was passed: a checkpoint from before it is older
    step: int  # the step at which it was known
    end_step: int | None = None  # where it had passed; None while it lasts

    @property
    def reason(self) -> str:
        return (
            f"since step {self.since_step} the largest attention logit is above {LIMIT:g}, which the rung key qk_clip "
            "limits: a divergence may follow"
        )


class AttentionLogits(Detector):
    """`now` is the warning in force."""

    only_unusual = True

    def __init__(self, thresholds: Thresholds) -> None:
        self.warnings: deque[LogitWarning] = deque(maxlen=_KEPT)
        self._limit, self._passed, self._silent = LIMIT, False, 0
        self._resumed_step: int | None = None

    @property
    def now(self) -> LogitWarning | None:
        return self.warnings[-1] if self.warnings and self.warnings[-1].end_step is None else None

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        logit = samples.readings.get("attention_logit_max")
        return logit is None or logit <= self._limit

    def push(self, samples: Samples, known: Known) -> Finding | None:
        if known.resumed_step != self._resumed_step:
            self._limit, self._resumed_step = LIMIT, known.resumed_step
        logit = samples.readings.get("attention_logit_max")
        if logit is not None and not logit <= self._limit:  # nan too
            self._limit, self._passed = 2 * logit if logit == logit else float("inf"), True
        return None

    def check(self, block: Block, known: Known) -> Finding | None:
        now = self.now
        self._silent = 0 if self._passed else self._silent + BLOCK
        if self._passed and now is None:
            self.warnings.append(LogitWarning(since_step=block.first_step, step=block.last_step))
        elif now is not None and self._silent >= _PASSES_SAMPLES:
            self.warnings[-1] = replace(now, end_step=block.last_step)
        self._passed = False
        return None
