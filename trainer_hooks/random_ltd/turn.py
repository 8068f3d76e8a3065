"""The position in training that the layers' draws depend on: set by RandomLtd.begin, read in every layer's forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["DataRank", "MicroBatchCount", "Turn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRank:
    """Of data parallelism. The ranks of a tensor-parallel group have one and the same: they hold the same samples."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, engine: Any, mpu: Any = None) -> DataRank:
        """As the model-parallel unit (Megatron's, or DeepSpeed's pipeline grid) tells; else every rank has its own."""
        unit: Any
        for unit in (mpu, getattr(engine, "mpu", None), getattr(engine, "grid", None)):
            if hasattr(unit, "get_data_parallel_rank"):  # an engine passes on attributes of the user's model, too
                return cls(rank=unit.get_data_parallel_rank(), size=unit.get_data_parallel_world_size())
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def first_sample(self, micro_batch: int, samples: int) -> int:
        """Number in the step's global batch of the micro-batch's first sample here; `samples`: that it has on a rank.
        Micro-batch by micro-batch, and in each rank by rank, as the reference trainer deals samples out: so a sample's
        number, and the tokens drawn for it, are the same on any number of ranks and with any micro-batch."""
        return (micro_batch * self.size + self.rank) * samples


@dataclass(slots=True, kw_only=True)
class Turn:
    """One step, and where the loop says so one micro-batch of it."""

    seed: int
    data_rank: DataRank
    step: int = 0
    """Number of the update that is being made, the first is 1; 0 before any `begin`."""

    kept: int | None = None
    """Tokens that a dropping layer keeps of each sample; None before any `begin`: all."""

    micro_batch: int | None = None
    """Its number within the step, from 0; None where each layer counts."""

    def kept_of(self, seqlen: int) -> int:
        """Tokens of a sample of `seqlen` tokens that a dropping layer keeps."""
        return seqlen if self.kept is None else min(self.kept, seqlen)


class MicroBatchCount:
    """Counts one layer's micro-batches in a step, for a loop that can't say: a pipeline makes them out of our sight. A
    recomputation (activation checkpointing, in the backward pass) belongs to the earliest micro-batch that has not been
    recomputed: backward passes come in the order of the forward ones, in a plain loop and in DeepSpeed's 1F1B."""

    def __init__(self) -> None:
        self._step = self._forwards = self._recomputed = 0

    def next(self, step: int) -> int:
        """The number, from 0, of the micro-batch that the layer is called for now."""
        if step != self._step:
            self._step, self._forwards, self._recomputed = step, 0, 0
        if in_backward():
            self._recomputed += 1
            return self._recomputed - 1
        self._forwards += 1
        return self._forwards - 1


def in_backward() -> bool:
    """Whether autograd is running in this thread; torch.utils.checkpoint asks the same way."""
    return bool(torch._C._current_graph_task_id() != -1)  # type: ignore[attr-defined,unused-ignore]
