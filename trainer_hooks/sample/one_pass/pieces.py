"""What a pass reads and what it gives: runs of Adam's state, the constants of its step, and the passes' interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.memory import Memory, Reading, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a piece counts for, without its memory."""

    elements: int
    layer: str | None = None  # None where DeepSpeed does not tell whose it is
    share: float = 1.0  # What each of its elements counts in a sum over all ranks, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A contiguous run of elements of Adam's state on this rank: one layer's, or a part of it. Views, never copies; who
    keeps a piece keeps its memory."""

    exp_avg_sq: Tensor  # (n,) contiguous: v. float32 as a rule; bfloat16, float16 and float64 are read too. n may be 0.
    exp_avg: Tensor | None = None  # (n,) contiguous, of the same elements: m. None where it is not needed.
    # (n,) contiguous, of the same elements: the parameter that the optimizer steps (the float32 master, if any).
    parameter: Tensor | None = None
    group: int = 0  # Which of the AdamConstants belong to it
    layer: str | None = None  # None where DeepSpeed does not tell whose it is
    share: float = 1.0  # What each of its elements counts in a sum over all ranks, 0 to 1
    key: int = 0  # 32 bits of a hash of the parameters' names and of what of them it holds

    def __post_init__(self) -> None:
        shapes = {tuple(t.shape) for t in self.present}
        if shapes != {(self.exp_avg_sq.numel(),)} or self.group < 0:  # a kernel goes by the addresses alone
            raise ValueError(f"a piece's tensors are of one length and one dimension, not of {sorted(shapes)}")

    @property
    def part(self) -> Part:
        return Part(elements=self.exp_avg_sq.numel(), layer=self.layer, share=self.share)

    @property
    def tensors(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.exp_avg_sq, self.exp_avg, self.parameter

    @property
    def present(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors if tensor is not None]

    def tiles(self, size: int) -> Iterator[tuple[int, ...]]:
        """Runs of at most `size` elements: addresses of v, m and the parameter (0: there is none), and the length."""
        n = self.exp_avg_sq.numel()
        for start in range(0, n, size):
            addresses = (0 if t is None else t.data_ptr() + start * t.element_size() for t in self.tensors)
            yield *addresses, min(size, n - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamConstants:
    """What turns m and v into the update of the last step, for one group of parameters. Dimensionless."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float = 0.0
    # The learning rate of that update: with a decoupled decay it tells the parameter before it from the one after.
    lr: float = 0.0
    step: int  # Updates made so far, this one counted: at least 1
    bias_correction: bool = True
    decoupled: bool = True  # AdamW: the decay is a part of the update. Otherwise (L2) it already is in m and v.
    # Divides by the largest v so far, a state that no pass reads: the update's norm is nan then, not measured.
    amsgrad: bool = False

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"an update that was made has a step of at least 1, not {self.step}")

    @property
    def momentum_scale(self) -> float:
        """1 / (1 - beta1^step); nan with AMSGrad, which makes the update nan."""
        if self.amsgrad:
            return math.nan
        corrected = 1 / (1 - self.beta1**self.step) if self.bias_correction else 1.0
        return corrected * self._before_over_after

    @property
    def root_scale(self) -> float:
        """1 / sqrt(1 - beta2^step)."""
        return 1 / math.sqrt(1 - self.beta2**self.step) if self.bias_correction else 1.0

    @property
    def decay(self) -> float:
        """What multiplies the parameter, as it is after the update, within the update."""
        return self.weight_decay * self._before_over_after if self.decoupled else 0.0

    @property
    def _before_over_after(self) -> float:
        """u = û + w p and p' = p - lr u give u = (û + w p') / (1 - lr w), where p' is what there is to be read."""
        return 1 / (1 - self.lr * self.weight_decay) if self.decoupled else 1.0


class OnePass(ABC):
    """Reads every element of the pieces once; one object for as long as the state lies there. It keeps no memory alive:
    a call raises RuntimeError where the state was freed or moved. Nothing of a parameter's size is allocated, and with
    CUDA the host waits for nothing."""

    name: str  # native, triton or chunked

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = len(pieces)
        self.device = pieces[0].exp_avg_sq.device if pieces else torch.device("cpu")
        self._variances = Memory(piece.exp_avg_sq for piece in pieces)
        self._all = Memory(tensor for piece in pieces for tensor in piece.present)

    def variance(self, *, threads: int | None = None, stop: Stop | None = None) -> Tensor:
        """(2, S) float64 on the pieces' device: of each piece the sum of sqrt(v), and the max of v. The max is of v,
        not of its root: max(sqrt(v)) = sqrt(max(v)), so the root is taken once, after the reduction over ranks. Both
        nan where any v is nan or negative; (0, 0) for a piece without elements.

        On the CPU by so many threads (None: torch's number), and until `stop` is set: Stopped then.
        """
        return self._pass(None, Reading(self._variances.open(), threads, stop))

    def moments(
        self, constants: Sequence[AdamConstants], *, threads: int | None = None, stop: Stop | None = None
    ) -> Tensor:
        """(5, S) float64 on the pieces' device: as `variance`, then the sums of m², u² and parameter².

        u = m̂ / (sqrt(v̂) + eps), plus weight_decay * parameter where that is decoupled: the last update before it was
        scaled by lr. The parameter is read as it lies there, after the step; the constants make up for it. A sum is
        nan where the piece does not hold what it is made of.
        """
        return self._pass(constants, Reading(self._all.open(), threads, stop))

    @abstractmethod
    def _pass(self, constants: Sequence[AdamConstants] | None, reading: Reading) -> Tensor: ...


def all_flat(pieces: Sequence[Piece], device: str, dtypes: Collection[torch.dtype]) -> bool:
    """Whether all tensors are one-dimensional and contiguous, on a device of that type and of these dtypes."""
    return all(
        t.device.type == device and t.dtype in dtypes and t.dim() == 1 and t.is_contiguous()
        for piece in pieces
        for t in piece.present
    )
