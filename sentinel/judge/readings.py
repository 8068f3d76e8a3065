"""Samples as the judge takes them: one, or a whole stretch in columns, in which millions of steps are judged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat

import numpy as np
from numpy.typing import NDArray

from sentinel.judge.noise_band import BLOCK
from sentinel.vocabulary.sample import Sample

# Fields of Sample that have a noise band of their own; beside them the loss scale is watched for a collapse. grad_norm:
# tr11-176B's went 0.24, 0.95, 2.4, 16, 145, 960 before its loss moved. adam_variance_*: Li, Zhang & He 2022, Figure 1
# and Table 3. update_norm: moves before the loss while the variance hardly does (seen in Marin's runs). loss_spread and
# grad_norm_spread: one rank's data or hardware, before the mean shows it.
BANDED = ("grad_norm", "adam_variance_l1", "adam_variance_max", "update_norm", "loss_spread", "grad_norm_spread")
# The fields of Sample that the judge reads, beside global_step and skipped.
COLUMNS = (
    *("loss", *BANDED, "attention_logit_max", "loss_scale", "lr"),
    *("seqlen", "kept_tokens", "curriculum_share", "global_batch_samples", "epoch"),
)
# Those that no judge reads. They are there where they were asked for: to export, to compare, to correlate.
CARRIED = (
    *("loss_ratio", "loss_ratio_all_lengths", "lr_warmup_steps", "step_time_s", "tokens_per_s"),
    *("consumed_samples", "consumed_tokens", "time_unix_s", "momentum_l2", "param_norm"),
    "output_logit_max",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """n neighbouring samples of one attempt, in the order in which they were made."""

    attempt: int  # The life of the training process group that made them
    steps: NDArray[np.int64]  # (n,) global_step
    # Name of COLUMNS, or CARRIED, to its (n,) values, in Sample's units. `loss` is always there; nan is a reading.
    columns: Mapping[str, NDArray[np.float64]]
    # Name to (n,): where the column holds a reading at all. A column that is not named here has no gaps.
    measured: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    skipped: NDArray[np.bool_] | None = None  # (n,) updates that the optimizer skipped; None where none was

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def updated(self) -> NDArray[np.bool_]:
        return np.ones(len(self), np.bool_) if self.skipped is None else ~self.skipped

    def has(self, name: str) -> NDArray[np.bool_]:
        if name not in self.columns:
            return np.zeros(len(self), np.bool_)
        return self.measured.get(name, np.ones(len(self), np.bool_))

    def values(self, name: str) -> NDArray[np.float64]:
        """(n,): the readings, nan where there is none."""
        return np.where(self.has(name), self.columns.get(name, np.nan), np.nan)

    def until(self, step: int) -> Readings:
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


def stretches_of(samples: Iterable[Sample], names: Sequence[str] = COLUMNS) -> list[Readings]:
    """The samples as columns, one stretch for each row of neighbours of the same attempt."""
    return [Readings.of(list(part), names) for _, part in groupby(samples, key=lambda s: s.attempt)]


OfEight = tuple[str, float, float]  # Name, median and largest value of eight neighbours
_Eights = tuple[list[tuple[float, float]], list[tuple[OfEight, ...]]]  # Of the losses, and of all signals


@dataclass(slots=True)
class Samples:
    """One sample, or eight plain neighbours. Not frozen: freezing makes each a microsecond slower."""

    steps: list[int]
    losses: list[float]  # nats; empty where the loss was not measured
    readings: Mapping[str, float | None]  # The newest value of each of COLUMNS; None or absent: not measured
    signals: Mapping[str, list[float]]  # The measured ones of BANDED, by name
    skipped: bool
    after: int | None  # The step of the sample before; None where these are the first
    plain: bool = False  # Whether these are eight: measured, finite, not 0.0, not skipped, no setting changes
    of_eight: Sequence[OfEight] = ()  # Where they are plain: of each of `signals`
    middle: float = math.nan  # … and the median and the largest of the losses
    largest: float = math.nan

    @classmethod
    def of(
        cls, step: int, readings: Mapping[str, float | None], *, skipped: bool = False, after: int | None = None
    ) -> Samples:
        loss = readings["loss"]
        signals = {name: [value] for name in BANDED if (value := readings.get(name)) is not None}
        return cls([step], [] if loss is None else [loss], readings, signals, skipped, after)


# Columns that mean something when they change.
_STEADY = ("seqlen", "kept_tokens", "curriculum_share", "global_batch_samples", "loss_scale")


class _Row(Mapping[str, float]):
    """One row of columns, looked up where it is asked for."""

    __slots__ = ("_at", "_columns")

    def __init__(self, columns: Mapping[str, list[float]], at: int) -> None:
        self._columns, self._at = columns, at

    def __getitem__(self, name: str) -> float:
        return self._columns[name][self._at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class ReadyReadings:
    """Readings made ready for the judge's loop: Python's own numbers, and where eight plain samples begin."""

    def __init__(self, readings: Readings) -> None:
        self._steps: list[int] = readings.steps.tolist()
        self._columns = {name: readings.columns[name].tolist() for name in COLUMNS if name in readings.columns}
        self._measured = {name: there.tolist() for name, there in readings.measured.items()}
        self._skipped: list[bool] | None = None if readings.skipped is None else readings.skipped.tolist()
        self._banded = {name: self._columns[name] for name in BANDED if name in self._columns}
        self._plain: list[bool] = _plain_blocks(readings).tolist()
        self._readings = readings
        self._eights: dict[int, _Eights] = {}  # By where the first of them begins: 0 to 7

    def block(self, i: int, after: int | None) -> Samples | None:
        """The 8 samples from i on, where they are plain. Never a stretch's first: what it changes is not known here."""
        if not self._plain[i]:
            return None
        end, at = i + BLOCK, i % BLOCK
        if at not in self._eights:
            self._eights[at] = _eights(self._readings, list(self._banded), at)
        of_losses, of_signals = self._eights[at]
        middle, largest = of_losses[i // BLOCK]
        newest = _Row(self._columns, end - 1)
        signals = {name: column[i:end] for name, column in self._banded.items()}
        losses, of_eight = self._columns["loss"][i:end], of_signals[i // BLOCK]
        return Samples(self._steps[i:end], losses, newest, signals, False, after, True, of_eight, middle, largest)

    def sample(self, i: int, after: int | None) -> Samples:
        readings: dict[str, float | None] = {}
        for name, column in self._columns.items():
            there = self._measured.get(name)
            readings[name] = column[i] if there is None or there[i] else None
        skipped = self._skipped is not None and self._skipped[i]
        loss = readings["loss"]
        signals = {name: [value] for name in self._banded if (value := readings[name]) is not None}
        return Samples([self._steps[i]], [] if loss is None else [loss], readings, signals, skipped, after)


def _eights(readings: Readings, names: Sequence[str], first: int) -> _Eights:
    """Of every eight neighbours from `first` on, at once: a call for each of them would take several times as long."""
    end = first + (len(readings) - first) // BLOCK * BLOCK
    found = []
    with np.errstate(all="ignore"):  # what is not plain is not asked for
        for name in ("loss", *names):
            rows = np.sort(readings.columns[name][first:end].reshape(-1, BLOCK), axis=1)
            middles = (rows[:, BLOCK // 2 - 1] + rows[:, BLOCK // 2]) / 2
            found.append((middles.tolist(), rows[:, -1].tolist()))
    losses = list(zip(*found[0], strict=True))
    signals = [list(zip(repeat(name), *both)) for name, both in zip(names, found[1:], strict=True)]
    return losses, list(zip(*signals, strict=True)) if signals else [()] * len(losses)


def _plain_blocks(readings: Readings) -> NDArray[np.bool_]:
    n = len(readings)
    plain = readings.updated
    plain[:1] = False
    for there in readings.measured.values():
        plain &= there
    for name in ("loss", *BANDED):
        if name in readings.columns:
            plain &= np.isfinite(readings.columns[name])
    plain &= readings.columns["loss"] != 0.0  # a loss, or a nan that a trainer shows as 0: see ZeroLoss
    for name in _STEADY:
        if name in readings.columns:
            plain[1:] &= readings.columns[name][1:] == readings.columns[name][:-1]
    counts = np.concatenate([[0], np.cumsum(plain)])
    whole = np.zeros(n, dtype=bool)
    if n >= BLOCK:
        whole[: n - BLOCK + 1] = counts[BLOCK:] - counts[:-BLOCK] == BLOCK
    return whole


def descent(stretches: Sequence[Readings]) -> list[Readings]:
    """The lineage: what a later stretch did again is gone. In the order in which they were made."""
    ends = ends_of_descent([int(r.steps[0]) for r in stretches if len(r)])
    kept = [r if end is None else r.until(end) for r, end in zip((r for r in stretches if len(r)), ends, strict=True)]
    return [r for r in kept if len(r)]


def ends_of_descent(first_steps: Sequence[int]) -> list[int | None]:
    """For each stretch, by the first steps of all, the step from which on a later one has done it again; else None."""
    ends: list[int | None] = []
    earliest: int | None = None
    for first in reversed(first_steps):
        ends.append(earliest)
        earliest = first if earliest is None else min(first, earliest)
    return ends[::-1]
