"""Whose the elements of Adam's state are, by the wrapping optimizer (seen in DeepSpeed 0.14.4 to 0.19.8):

| engine.optimizer | the state's tensors | what tells whose the elements are |
|---|---|---|
| Adam itself (ZeRO 0, fp32; without DeepSpeed) | one per parameter | the key of the state is the parameter |
| FP16_UnfusedOptimizer (ZeRO 0) | one per parameter | fp16_groups beside fp32_groups |
| FP16_Optimizer (ZeRO 0, FusedAdam) | one flat tensor per group | fp16_groups, end to end |
| DeepSpeedZeroOptimizer (1, 2), BF16_Optimizer | one flat partition per group | `_hp_mapping` of each parameter |
| DeepSpeedZeroOptimizer_Stage3 | one flat partition per sub-group | fp16_groups and partition_numel(), end to end |

The padding of a partition is not read: in ZeRO 3 it is memory that was never set, and its v can be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter


class Owner(NamedTuple):
    """The parameter of a run of elements in a flat tensor."""

    start: int
    size: int
    parameter: Parameter
    offset: int = 0
    """Of the first of them among the parameter's own elements."""


def local(tensor: Any) -> Any:
    """A DTensor's part on this rank; anything else as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def inner_optimizers(optimizer: Any) -> Iterator[Any]:
    """The optimizers that hold groups and state: the inner one, and the one that takes what is not offloaded; or each
    of several."""
    if (several := getattr(optimizer, "optimizers", None)) is not None:
        yield from several
        return
    yield getattr(optimizer, "optimizer", optimizer)
    if (backup := getattr(optimizer, "backup_optimizer", None)) is not None:
        yield backup


def owners_of(optimizer: Any) -> Iterator[tuple[int, list[Owner]]]:
    """(id of what the inner optimizer updates, whose its elements are), for a wrapping optimizer of DeepSpeed's."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # ZeRO 3
        for master, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            owners = _end_to_end(parameters, [p.partition_numel() for p in parameters])
            yield id(master), [_of_this_rank(owner) for owner in owners]
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):  # ZeRO 1 and 2
        yield from _linked(optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups)
    elif hasattr(optimizer, "fp32_groups_flat_partition"):  # BF16_Optimizer
        yield from _linked(optimizer.fp32_groups_flat_partition, optimizer.bf16_groups)
    elif hasattr(optimizer, "fp32_groups_flat"):
        for master, parameters in zip(optimizer.fp32_groups_flat, optimizer.fp16_groups, strict=True):
            yield id(master), _end_to_end(parameters, [p.numel() for p in parameters])
    elif hasattr(optimizer, "fp32_groups"):
        for masters, parameters in zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True):
            for master, parameter in zip(masters, parameters, strict=True):
                yield id(master), [Owner(start=0, size=master.numel(), parameter=parameter)]


def _end_to_end(parameters: Sequence[Parameter], sizes: Sequence[int]) -> list[Owner]:
    starts = accumulate(sizes, initial=0)
    return [Owner(start=a, size=n, parameter=p) for a, n, p in zip(starts, sizes, parameters, strict=False)]


def _of_this_rank(owner: Owner) -> Owner:
    """Of this rank's part of a parameter that ZeRO 3 has cut up, what is no padding."""
    parameter: Any = owner.parameter
    offset = dist.get_rank(parameter.ds_process_group) * owner.size
    return owner._replace(size=max(0, min(owner.size, int(parameter.ds_numel) - offset)), offset=offset)


def _linked(partitions: Iterable[Tensor], groups: Iterable[Iterable[Parameter]]) -> Iterator[tuple[int, list[Owner]]]:
    for partition, parameters in zip(partitions, groups, strict=True):
        owners = []
        for parameter in parameters:
            if (mapping := getattr(parameter, "_hp_mapping", None)) is not None:
                address, offset = mapping.get_hp_fragment_address(), mapping.lp_fragment_address.start
                owners.append(Owner(start=address.start, size=address.numel, parameter=parameter, offset=offset))
        yield id(partition), owners


def one_per_parameter(optimizer: Any) -> bool:
    """Whether each parameter has a state of its own, which Adam makes at the parameter's first gradient."""
    flat = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    return not any(hasattr(optimizer, name) for name in (*flat, "fp32_groups_flat"))


def numbers_of_groups(optimizers: Sequence[Any], wrapper: Any) -> dict[int, tuple[int, int]]:
    """{id of what an optimizer updates: (number of the optimizer, number of its group)}, made in one go through the
    groups. ZeRO 3 hands its sub-groups in one by one, each step anew."""
    numbers = {
        id(master): (at, number)
        for at, optimizer in enumerate(optimizers)
        for number, group in enumerate(optimizer.param_groups)
        for master in group["params"]
    }
    for number, flat in enumerate(getattr(wrapper, "fp32_partitioned_groups_flat", ())):
        numbers.setdefault(id(flat), (0, wrapper.sub_group_to_group_id[number]))
    return numbers
