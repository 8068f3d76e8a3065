"""Where Adam's state lies on this rank, and which layer each run of its elements belongs to.

DeepSpeed keeps the state in one of five ways, by its wrapping optimizer (seen in 0.14.4 to 0.19.8):

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

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from trainer_hooks.sample.one_pass.pieces import AdamConstants, Piece
from trainer_hooks.sample.replicas import Replicas


class _Owner(NamedTuple):
    """The parameter of a run of elements in a flat tensor."""

    start: int
    size: int
    parameter: Parameter


class AdamState:
    """The state of an engine's Adam on this rank, looked up anew when its tensors are no longer the same."""

    def __init__(self, engine: Any, layers: Mapping[int, str], replicas: Replicas) -> None:
        self._engine = engine
        self._layers = layers  # {id of a model's parameter: its layer}
        self._replicas = replicas
        self.seen: list[int] = []  # Addresses of v as of the last look; empty where the optimizer has no state
        self._seen_beside: list[int] = []
        self._counted: dict[int, tuple[int, int]] = {}  # {id of a step count on a device: (its value, updates then)}
        self._groups: list[tuple[Any, Mapping[str, Any], list[Mapping[str, Any]]]] = []
        """(optimizer, one of its groups, the states of the group's tensors), as the pieces' `group` counts."""
        self._lrs: dict[int, Any] = {}
        self.pieces: list[Piece] = []
        """Every element of a parameter once; nothing before the first update that was not skipped."""

    def changed(self, *, whole: bool = False) -> bool:
        """Looks at v, or at m and the parameters too; True when `pieces` is new: at the first update, after a load."""
        seen = [local(state["exp_avg_sq"]).data_ptr() for _, _, state in self._states()]
        if seen == self.seen and (not whole or self._beside() == self._seen_beside):
            return False
        self.pieces = list(self._look_up())
        self.seen, self._seen_beside = seen, self._beside()
        return True

    def _beside(self) -> list[int]:
        pairs = ((local(state.get("exp_avg")), local(master)) for _, master, state in self._states())
        return [t.data_ptr() for pair in pairs for t in pair if isinstance(t, Tensor)]

    def _updates(self) -> int:
        return int(self._engine.global_steps) - int(self._engine.skipped_steps)

    def _step_of(self, state: Mapping[str, Any], group: Mapping[str, Any]) -> int:
        """Updates that a tensor has had. A count that lies on a device is read once, and counted on from there."""
        step = state.get("step", group.get("step", 1))
        if not (isinstance(step, Tensor) and step.is_cuda):
            return int(step)
        value, then = self._counted.get(id(step)) or self._counted.setdefault(id(step), (int(step), self._updates()))
        return value + self._updates() - then

    def update_coming(self) -> None:
        """Before each update: remembers the learning rates that it will be made with, which schedules change after."""
        groups = [g for optimizer in inner_optimizers(self._engine.optimizer) for g in optimizer.param_groups]
        self._lrs = {id(group): group["lr"] for group in groups}

    def constants(self) -> list[AdamConstants]:
        """What each group's last update was made with, as the pieces' `group` counts."""
        made = []
        for optimizer, group, states in self._groups:
            steps = [self._step_of(state, group) for state in states]  # FusedAdam counts in the last tensor alone
            made.append(_constants(optimizer, group, step=max(steps), lr=float(self._lrs.get(id(group), 0.0))))
        return made

    def _states(self) -> Iterator[tuple[Any, Any, Mapping[str, Any]]]:
        """(optimizer, what it updates, the state of that) wherever a v is in memory."""
        for optimizer in inner_optimizers(self._engine.optimizer):
            for master, state in optimizer.state.items():
                v = state.get("exp_avg_sq")
                if v is not None and local(v).numel():  # what was swapped to an NVMe is an empty tensor
                    yield optimizer, master, state

    def _look_up(self) -> Iterator[Piece]:
        self._groups = []
        self._counted = {}
        numbers: dict[int, int] = {}
        owners = dict(_owners(self._engine.optimizer))
        for optimizer, master, state in self._states():
            hyperparameters = _group_of(optimizer, master, self._engine.optimizer)
            number = numbers.setdefault(id(hyperparameters), len(numbers))
            if number == len(self._groups):
                self._groups.append((optimizer, hyperparameters, []))
            self._groups[number][2].append(state)
            v = local(state["exp_avg_sq"])
            own = owners.get(id(master), [_Owner(start=0, size=local(master).numel(), parameter=master)])
            if any(owner.start + owner.size > v.numel() for owner in own):
                raise RuntimeError(f"a state of {v.numel()} elements is shorter than the parameters that it is of")
            for start, size, layer, share in self._runs(own):
                tensors = (v, state.get("exp_avg"), master)
                vs, ms, ps = (_run(local(t), v.numel(), start, size) for t in tensors)
                if vs is None:
                    raise RuntimeError(f"a state of shape {tuple(v.shape)} is not dense in memory")
                yield Piece(exp_avg_sq=vs, exp_avg=ms, parameter=ps, group=number, layer=layer, share=share)

    def _runs(self, owners: Sequence[_Owner]) -> Iterator[tuple[int, int, str | None, float]]:
        """(start, size, layer, share) of what has an owner; neighbours of one kind are one run."""
        start = end = 0
        kind: tuple[str | None, float] | None = None
        for owner in sorted(owners, key=lambda o: o.start):
            theirs = (self._layers.get(id(owner.parameter)), self._replicas.share(owner.parameter))
            if theirs != kind or owner.start != end:
                if kind is not None and end > start:
                    yield start, end - start, *kind
                start, kind = owner.start, theirs
            end = owner.start + owner.size
        if kind is not None and end > start:
            yield start, end - start, *kind


def local(tensor: Any) -> Any:
    """A DTensor's part on this rank; anything else as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def inner_optimizers(optimizer: Any) -> Iterator[Any]:
    """The optimizers that hold groups and state: the inner one, and the one that takes what is not offloaded."""
    yield getattr(optimizer, "optimizer", optimizer)
    if (backup := getattr(optimizer, "backup_optimizer", None)) is not None:
        yield backup


def _owners(optimizer: Any) -> Iterator[tuple[int, list[_Owner]]]:
    """(id of what the inner optimizer updates, whose its elements are), for a wrapping optimizer of DeepSpeed's."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # ZeRO 3
        for master, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            owners = _end_to_end(parameters, [p.partition_numel() for p in parameters])
            yield id(master), [o._replace(size=_without_padding(o.parameter, o.size)) for o in owners]
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
                yield id(master), [_Owner(start=0, size=master.numel(), parameter=parameter)]


def _end_to_end(parameters: Sequence[Parameter], sizes: Sequence[int]) -> list[_Owner]:
    starts = accumulate(sizes, initial=0)
    return [_Owner(start=a, size=n, parameter=p) for a, n, p in zip(starts, sizes, parameters, strict=False)]


def _without_padding(parameter: Any, size: int) -> int:
    """How many of this rank's `size` elements of a parameter that ZeRO 3 has cut up are the parameter's own."""
    return max(0, min(size, int(parameter.ds_numel) - dist.get_rank(parameter.ds_process_group) * size))


def _linked(partitions: Iterable[Tensor], groups: Iterable[Iterable[Parameter]]) -> Iterator[tuple[int, list[_Owner]]]:
    for partition, parameters in zip(partitions, groups, strict=True):
        owners = []
        for parameter in parameters:
            if (mapping := getattr(parameter, "_hp_mapping", None)) is not None:
                address = mapping.get_hp_fragment_address()
                owners.append(_Owner(start=address.start, size=address.numel, parameter=parameter))
        yield id(partition), owners


def _group_of(optimizer: Any, master: Any, wrapper: Any) -> Mapping[str, Any]:
    """The hyperparameters that a tensor is updated with. ZeRO 3 hands its sub-groups in one by one, each step anew."""
    for group in optimizer.param_groups:
        if any(master is parameter for parameter in group["params"]):
            return group  # type: ignore[no-any-return]
    flats = getattr(wrapper, "fp32_partitioned_groups_flat", ())
    number = next((i for i, flat in enumerate(flats) if flat is master), None)
    return optimizer.param_groups[wrapper.sub_group_to_group_id[number] if number is not None else 0]  # type: ignore[no-any-return]


def _run(tensor: Any, whole: int, start: int, size: int) -> Tensor | None:
    """A run of a tensor's elements as they lie in memory, as a view; None where it is no dense tensor as long as v."""
    if not isinstance(tensor, Tensor) or tensor.numel() != whole:
        return None
    flat = tensor.detach()
    if not flat.is_contiguous():  # channels_last and the like: v, m and the parameter are laid out alike
        if 1 + sum((n - 1) * stride for n, stride in zip(flat.shape, flat.stride(), strict=True)) != whole:
            return None
        flat = flat.as_strided((whole,), (1,))
    return flat.view(-1)[start : start + size]


def _constants(optimizer: Any, group: Mapping[str, Any], *, step: int, lr: float) -> AdamConstants:
    beta1, beta2 = (float(beta) for beta in group["betas"])
    if type(optimizer).__module__.startswith("deepspeed."):
        # its kernels take them in float32: 1 - 0.999f is 0.00100005
        beta1, beta2 = struct.unpack("2f", struct.pack("2f", beta1, beta2))
    decoupled = group.get("decoupled_weight_decay", getattr(optimizer, "adam_w_mode", None))
    if decoupled is None:
        decoupled = type(optimizer).__name__ != "Adam"
    return AdamConstants(
        beta1=beta1,
        beta2=beta2,
        eps=float(group["eps"]),
        weight_decay=float(group.get("weight_decay", 0.0)),
        lr=lr,
        step=max(1, step),
        bias_correction=bool(group.get("bias_correction", True)),
        decoupled=bool(decoupled),
        amsgrad=bool(group.get("amsgrad", False)),
    )
