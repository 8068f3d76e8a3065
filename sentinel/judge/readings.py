"""A stretch of samples in columns: the form that millions of steps are judged in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.sample import Sample

__all__ = ["CARRIED", "COLUMNS", "Readings"]

COLUMNS = (
    "loss",
    "grad_norm",
    "adam_variance_l1",
    "adam_variance_max",
    "update_norm",
    "loss_spread",
    "grad_norm_spread",
    "loss_scale",
    "lr",
    "seqlen",
    "kept_tokens",
    "curriculum_share",
    "global_batch_samples",
    "epoch",
)
"""The fields of Sample that the judge reads, beside global_step and skipped."""

CARRIED = (
    *("loss_ratio", "lr_warmup_steps", "step_time_s", "tokens_per_s", "consumed_samples", "consumed_tokens"),
    *("time_unix_s", "momentum_l2", "param_norm"),
)
"""Those that no judge reads. They are there where they were asked for: to export, to compare, to correlate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """n neighbouring samples of one attempt, in the order in which they were made."""

    attempt: int
    """The life of the training process group that made them."""

    steps: NDArray[np.int64]
    """(n,) global_step."""

    columns: Mapping[str, NDArray[np.float64]]
    """Name of COLUMNS, or CARRIED, to its (n,) values, in Sample's units. `loss` is always there; nan is a reading."""

    measured: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Name to (n,): where the column holds a reading at all. A column that is not named here has no gaps."""

    skipped: NDArray[np.bool_] | None = None
    """(n,) updates that the optimizer skipped; None where none was."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def updated(self) -> NDArray[np.bool_]:
        """(n,): where the optimizer did not skip the update."""
        return np.ones(len(self), np.bool_) if self.skipped is None else ~self.skipped

    def has(self, name: str) -> NDArray[np.bool_]:
        """(n,): where the column holds a reading."""
        if name not in self.columns:
            return np.zeros(len(self), np.bool_)
        return self.measured.get(name, np.ones(len(self), np.bool_))

    def values(self, name: str) -> NDArray[np.float64]:
        """(n,): the readings, nan where there is none."""
        return np.where(self.has(name), self.columns.get(name, np.nan), np.nan)

    def until(self, step: int) -> Readings:
        """Those before the step; for steps that only grow."""
        n = int(np.searchsorted(self.steps, step))
        return Readings(
            attempt=self.attempt,
            steps=self.steps[:n],
            columns={name: column[:n] for name, column in self.columns.items()},
            measured={name: there[:n] for name, there in self.measured.items()},
            skipped=None if self.skipped is None else self.skipped[:n],
        )

    @classmethod
    def of(cls, samples: Sequence[Sample], names: Sequence[str] = COLUMNS) -> Readings:
        """The samples as columns. ValueError when there are none, or when they are of several attempts."""
        attempts = {s.attempt for s in samples}
        if len(attempts) != 1:
            raise ValueError(f"samples of one attempt are wanted, not of {sorted(attempts)}")
        columns, measured = {}, {}
        for name in names:
            values = [getattr(s, name) for s in samples]
            there = np.array([v is not None for v in values])
            if not there.any():
                continue
            columns[name] = np.array([math.nan if v is None else v for v in values], dtype=np.float64)
            if not there.all():
                measured[name] = there
        return cls(
            attempt=attempts.pop(),
            steps=np.array([s.global_step for s in samples], dtype=np.int64),
            columns=columns,
            measured=measured,
            skipped=np.array([s.skipped for s in samples]),
        )
