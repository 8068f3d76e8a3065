"""On how many ranks the same element of Adam's state lies: what makes a SUM over all ranks count each parameter once.

| training | who holds the same element |
|---|---|
| ZeRO 0 | every data-parallel rank (of an expert: every rank of its expert-data-parallel group) |
| ZeRO 1, 2, 3 | no other rank: each rank has a partition of its own; with MiCS every shard group has one |
| tensor parallel | every rank of the group where the parameter is not split (norms, biases of row-parallel layers) |
| DDP | every rank; FSDP: no other rank, or one of each group of HYBRID_SHARD |
| DTensors | every rank of a mesh dimension that the parameter is not split over, and those of other meshes like it |
| pipeline parallel, tied weights | every stage that has the tied module; DeepSpeed marks all but one |

Each element counts 1 / (its replicas), so a replica that differs still shows, and so does a nan on any of them.

A batch lies on every rank of a tensor-parallel group and may lie on several stages of a pipeline: the first rank of the
group, in the first stage, counts it. Where sequences are cut over ranks, or ranks share batches in a way that is not
known, no digest of the batch is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch.nn import Parameter

from trainer_hooks.sample.own import own
from trainer_hooks.sample.owners import local

_TENSOR_PARALLEL_SIZE = (
    "get_tensor_model_parallel_world_size",  # Megatron-LM since 2.x, Megatron-DeepSpeed
    "get_slice_parallel_world_size",  # DeepSpeed's PipelineParallelGrid
    "get_model_parallel_world_size",  # Megatron-LM 1.x, BigScience's fork
)


_TENSOR_PARALLEL_RANK = tuple(name.replace("world_size", "rank") for name in _TENSOR_PARALLEL_SIZE)
_STAGE = ("get_pipeline_model_parallel_rank", "get_stage_id", "get_pipe_parallel_rank")
_STAGES = ("get_pipeline_model_parallel_world_size", "get_pipe_parallel_world_size")
_CUTS_OF_A_SEQUENCE = ("get_context_parallel_world_size", "get_sequence_parallel_world_size")


def is_partitioned(engine: Any) -> bool:
    """Whether each rank holds its own part of v (ZeRO 1 to 3); at stage 0 every data-parallel rank holds all of it.
    BF16_Optimizer, which a pipeline in bf16 gets, cuts the state up whatever the stage is called."""
    return int(engine.zero_optimization_stage()) > 0 or hasattr(engine.optimizer, "fp32_groups_flat_partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How one engine spreads its parameters."""

    copies_of_parameters: int  # Data-parallel ranks that the same element of a dense parameter belongs to
    data_parallel: int  # Ranks that hold the same element of a dense parameter's state, tensor parallelism apart
    tensor_parallel: int  # Ranks over which split parameters are split, and others repeated
    of_expert: Callable[[Any], int]  # Of a parameter of an expert: ranks that hold the same element of its state
    expert_copies: Callable[[Any], int]  # Of a parameter of an expert: ranks that hold the same element of it
    whole_model: bool  # Whether each rank makes the gradients of the whole model, so that theirs can be compared

    @classmethod
    def of(cls, engine: Any, mpu: Any = None) -> Replicas:
        """As DeepSpeed's engine and the model-parallel unit (Megatron's, or DeepSpeed's pipeline grid) tell."""
        alone, unit = is_partitioned(engine), mpu if mpu is not None else own(engine, "mpu")
        tensor_parallel = _told(unit, _TENSOR_PARALLEL_SIZE) or 1
        parted = own(engine, "is_pipe_parallel", False) or own(engine, "has_moe_layers", False)
        parted = parted or not own(engine, "has_whole_gradients", True)
        copies = own(engine, "copies_of_state")
        whole = int(copies or 0)
        if not copies:  # sequence parallel ranks included: they hold the same parameters
            copies = int(own(engine, "seq_dp_world_size", 0) or own(engine, "dp_world_size", 0) or _size(None))
            whole = copies
            if alone:  # MiCS keeps a whole set of partitions in every group of mics_shard_size ranks; ZeRO keeps one
                shard = int(getattr(engine._config.zero_config, "mics_shard_size", None) or 0)
                copies = copies // shard if shard > 0 else 1
        return cls(
            copies_of_parameters=whole,
            data_parallel=copies,
            tensor_parallel=tensor_parallel,
            of_expert=lambda p: 1 if alone else _size(engine.expert_data_parallel_group[p.group_name]),
            expert_copies=lambda p: _size(engine.expert_data_parallel_group[p.group_name]),
            whole_model=tensor_parallel == 1 and not parted,
        )

    def owned(self, parameter: Parameter) -> float:
        """Elements of the parameter that this rank answers for: over all ranks, each element of the model once."""
        if getattr(parameter, "ds_pipe_replicated", False):
            return 0.0
        elements = int(getattr(parameter, "ds_numel", 0) or local(parameter).numel())
        if not getattr(parameter, "allreduce", True):
            return elements / self.expert_copies(parameter)
        if hasattr(parameter, "device_mesh"):
            return elements * self.share(parameter)
        return elements / (self.copies_of_parameters * self._copies_beside(parameter))

    def _copies_beside(self, parameter: Parameter) -> int:
        """Tensor-parallel ranks that hold the same element, by Megatron's marks of what is split."""
        split = getattr(parameter, "model_parallel", False) or getattr(parameter, "tensor_model_parallel", False)
        return 1 if split else self.tensor_parallel

    def share(self, parameter: Parameter) -> float:
        """What one element of it counts on this rank, 0 to 1."""
        if getattr(parameter, "ds_pipe_replicated", False):  # the stage that owns the tied weights counts them
            return 0.0
        if not getattr(parameter, "allreduce", True):  # an expert's, by DeepSpeed's mark
            return 1.0 / self.of_expert(parameter)
        if (mesh := getattr(parameter, "device_mesh", None)) is not None:  # a DTensor tells itself
            # FSDP 2 over tensor parallelism has a kind of shard that says of itself that it is none
            parts = [mesh.size(n) for n, placed in enumerate(parameter.placements) if not placed.is_replicate()]  # type: ignore[attr-defined]
            return float(math.prod(parts)) / _size(None)
        return 1.0 / (self.data_parallel * self._copies_beside(parameter))


def counts_batches(engine: Any, mpu: Any) -> bool | None:
    """Whether this rank's batches count in `batch_digest`; None where that is not known, and there is no digest."""
    unit = mpu if mpu is not None else own(engine, "mpu")
    cut = (_told(unit, _CUTS_OF_A_SEQUENCE), int(own(engine, "sequence_parallel_size", 1) or 1))
    if any((size or 1) > 1 for size in cut):
        return None
    sizes = _told(unit, _TENSOR_PARALLEL_SIZE) or 1, _told(unit, _STAGES) or 1
    data_parallel = int(own(engine, "dp_world_size", 0) or _size(None))
    if math.prod(sizes) * data_parallel != _size(None):
        return None
    places = _told(unit, _TENSOR_PARALLEL_RANK), _told(unit, _STAGE)
    if any(place is None and size > 1 for place, size in zip(places, sizes, strict=True)):
        return None
    return not any(places)


def _told(unit: Any, names: Iterable[str]) -> int | None:
    """What the first of these methods that the model-parallel unit has gives."""
    return next((int(getattr(unit, name)()) for name in names if hasattr(unit, name)), None)


def _size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1
