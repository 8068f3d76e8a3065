"""Which part of the global batch this process has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

__all__ = ["DataRank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRank:
    """Of data parallelism. The ranks of a tensor-parallel group have one and the same: they hold the same samples."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, engine: Any, mpu: Any = None) -> DataRank:
        """As the model-parallel unit (Megatron's, or DeepSpeed's pipeline grid) tells; else every rank has its own."""
        told: Any
        for told in (mpu, getattr(engine, "mpu", None), getattr(engine, "grid", None)):
            if hasattr(told, "get_data_parallel_rank"):  # an engine passes on attributes of the user's model, too
                return cls(rank=told.get_data_parallel_rank(), size=told.get_data_parallel_world_size())
        if not dist.is_initialized():
            return cls()
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def first_sample(self, micro_batch: int, samples: int) -> int:
        """Number in the step's global batch of the micro-batch's first sample here; `samples`: that it has on a rank.

        Micro-batch by micro-batch, and in each rank by rank, as the reference trainer deals samples out: so a sample's
        number, and the tokens drawn for it, are the same on any number of ranks and with any micro-batch.
        """
        return (micro_batch * self.size + self.rank) * samples
