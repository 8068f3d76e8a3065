"""What each simulated run goes through: one step a second on a made-up curve, and for some of them a divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.made_up.runs import Columns, columns
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.loss_ratio import loss_ratio
from sentinel.vocabulary.sample import Sample

__all__ = ["FIRST_STEP", "SimulatedRun", "simulated"]

FIRST_STEP = 20_001
"""Where the curves are taken up: the learning rate has warmed up, and the loss falls slowly."""

_LENGTH = 4_000
_CURVES = 8
_ILL_OF = 20
"""One run in so many diverges."""

_WAITED_STEPS = 50  # Half of the patience: the signals of a simulated divergence agree with its loss
"""After which the judge knows that such a loss does not come back; of nan it knows at once."""

_SEQLEN, _BATCH = 2048, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One of them."""

    number: int
    diverges_at: int | None
    """The step from which on its loss is nan, or, in every second one, far above what it was; None: it does not."""

    @property
    def name(self) -> str:
        """As its configuration has it."""
        return f"run-{self.number:04d}"

    @property
    def curve(self) -> int:
        """Which of the curves it is on: healthy runs on one curve differ in nothing but their times."""
        return self.number % _CURVES

    @property
    def ends_in_nan(self) -> bool:
        """Every second of those that diverge."""
        return self.number // _ILL_OF % 2 == 0

    def is_ill(self, step: int) -> bool:
        """Whether it has diverged by then."""
        return self.diverges_at is not None and step >= self.diverges_at

    def sample(self, step: int, time_unix_s: float) -> Sample:
        """The step's, ended at that time."""
        curve, at = _curve(self.curve), (step - FIRST_STEP) % _LENGTH
        loss, grad_norm = float(curve["loss"][at]), float(curve["grad_norm"][at])
        if self.is_ill(step):
            loss, grad_norm = (math.nan, math.nan) if self.ends_in_nan else (loss + 6.0, 30 * grad_norm)
        return Sample(
            attempt=1,
            global_step=step,
            time_unix_s=time_unix_s,
            loss=loss,
            loss_ratio=loss_ratio(loss, float(curve["lowest"][at])),
            adam_variance_l1=float(curve["adam_variance_l1"][at]),
            adam_variance_max=float(curve["adam_variance_max"][at]),
            grad_norm=grad_norm,
            update_norm=float(curve["update_norm"][at]),
            loss_spread=float(curve["loss_spread"][at]),
            loss_scale=65536.0,
            lr=6e-5,
            seqlen=_SEQLEN,
            lr_warmup_steps=3000,
            step_time_s=1.0,
            tokens_per_s=float(_SEQLEN * _BATCH),
            global_batch_samples=_BATCH,
            consumed_samples=_BATCH * step,
            consumed_tokens=_BATCH * step * _SEQLEN,
        )

    def samples(self, steps: range, first_unix_s: float) -> Iterator[Sample]:
        """One a second."""
        return (self.sample(step, first_unix_s + i) for i, step in enumerate(steps))

    def known_at(self, first_step: int, longest: int = 600) -> int | None:
        """The step at which a judge that sees every sample from the first on knows of the divergence."""
        if self.diverges_at is None:
            return None
        series = Series(Thresholds())
        for sample in self.samples(range(first_step, self.diverges_at + longest), 0.0):
            series.push(sample)
            if series.alarm is not None:
                return sample.global_step
        return None


def simulated(count: int, *, known_from: int, within: int) -> list[SimulatedRun]:
    """So many; the divergences can be known in the `within` steps from that one on, spread over them."""
    ill = max(1, count // _ILL_OF)
    every = count // ill
    found = []
    for number in range(count):
        known_at = known_from + number // every * within // ill if number % every == 0 else None
        run = SimulatedRun(number=number, diverges_at=known_at)
        if known_at is not None and not run.ends_in_nan:
            run = replace(run, diverges_at=known_at - _WAITED_STEPS)
        found.append(run)
    return found


@cache
def _curve(number: int) -> Columns:
    hard = "hard" if number == 0 else "healthy"
    whole = list(columns(FIRST_STEP + _LENGTH, "all", hard, seed=number))
    found = {name: np.concatenate([stretch[name] for stretch in whole])[FIRST_STEP - 1 :] for name in whole[0]}
    return found | {"lowest": np.minimum.accumulate(found["loss"])}
