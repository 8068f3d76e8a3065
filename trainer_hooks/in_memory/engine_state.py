"""What the state of a DeepSpeed engine is on this rank: tensors, and numbers beside them. Tried: ZeRO 0 to 3, fp32 and
bf16, on CPUs. No CPU trains fp16: of its loss scale is kept what DeepSpeed's own checkpoints hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer_hooks.generators import restore_rng, rng_state
from trainer_hooks.sample.own import has_own, own
from trainer_hooks.sample.owners import inner_optimizers

COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_SCALING = (  # of the wrapping optimizer, its `loss_scaler` and its `loss_scale_config`, whichever a version has
    *("cur_scale", "cur_iter", "cur_hysteresis", "last_overflow_iter", "dynamic_loss_scale", "overflow", "clip_grad"),
    *("scale_factor", "scale_window", "min_scale", "min_loss_scale", "delayed_shift", "consecutive_hysteresis"),
)


class Name(NamedTuple):
    """Of a tensor of the state: it depends on the model and its parts alone, not on the engine that holds it."""

    kind: str  # parameter, partition (of a parameter, ZeRO 3), buffer, master or state
    number: int  # in the order of the model, or of the optimizers' groups
    key: str = ""  # of the state of the master of that number: exp_avg, exp_avg_sq, step


def why_not(engine: Any) -> str | None:
    """Why no state of this engine can be kept and put back, as a phrase; None where it can."""
    optimizer, module = own(engine, "optimizer"), own(engine, "module")
    if optimizer is None or module is None or not has_own(engine, "load_checkpoint"):
        return "it is no DeepSpeed engine with an optimizer"
    if has_own(engine, "train_batch"):
        return "a pipeline's stages are not tried"
    if own(engine, "mp_world_size", 1) > 1 or own(engine, "sequence_parallel_size", 1) > 1:
        return "tensor and sequence parallelism are not tried"
    if own(engine, "has_moe_layers", False):
        return "experts are not tried"
    for name in ("zero_cpu_offload", "zero_offload_optimizer", "zero_offload_param", "super_offload", "zenflow_config"):
        if _says(engine, name):
            return "a state that is offloaded is not tried"
    if getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        return "a state that is offloaded is not tried"
    if int(_says(engine, "zero_hpz_partition_size") or 1) > 1 or _says(engine, "zero_quantized_weights"):
        return "secondary and quantized partitions of ZeRO 3 are not tried"
    for name in ("random_ltd_enabled", "curriculum_enabled_legacy", "pld_enabled"):
        if _says(engine, name):
            return "schedules of DeepSpeed's own for the data and the layers are not tried"
    if not all(isinstance(getattr(inner, "state", None), Mapping) for inner in inner_optimizers(optimizer)):
        return "its optimizer is not one of torch.optim's kind"
    return None


def _says(engine: Any, name: str) -> Any:
    """What the engine's method of that name says; None where this version has no such method."""
    method = own(engine, name)
    return method() if callable(method) else None


def tensors_of(engine: Any) -> Iterator[tuple[Name, Tensor]]:
    """All that lives on this rank, each once, as it is now."""
    yield from _of_model(engine)
    for number, (master, inner, is_own) in enumerate(_masters(engine)):
        if is_own:
            yield Name("master", number), master.detach()
        for key, value in sorted(_state(inner, master).items()):
            if isinstance(value, Tensor):
                yield Name("state", number, key), value.detach()


def bytes_of(engine: Any) -> list[int]:
    """Of each tensor that will be there once Adam has its state: two tensors of each master's size, and a step."""
    sizes = [tensor.nbytes for _, tensor in _of_model(engine)]
    for master, inner, is_own in _masters(engine):
        sizes += [master.nbytes] * is_own
        made = [value.nbytes for value in _state(inner, master).values() if isinstance(value, Tensor)]
        sizes += made or [max(4, master.element_size()) * master.numel()] * 2 + [4]
    return sizes


def numbers_of(engine: Any) -> dict[str, Any]:
    """What is no tensor of the engine's: counters, what the optimizers run with, loss scale, LR scheduler, generators.
    A copy."""
    scheduler = own(engine, "lr_scheduler")
    numbers = {
        "counters": {name: getattr(engine, name) for name in COUNTERS if hasattr(engine, name)},
        "groups": [
            [{key: value for key, value in group.items() if key != "params"} for group in inner.param_groups]
            for inner in inner_optimizers(engine.optimizer)
        ],
        "state": [
            {key: value for key, value in _state(inner, master).items() if not isinstance(value, Tensor)}
            for master, inner, _ in _masters(engine)
        ],
        "scaling": [{k: vars(one)[k] for k in _SCALING if k in vars(one)} for one in _scalers(engine)],
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "rng": rng_state(),
    }
    return deepcopy(numbers)


@torch.no_grad()
def put_back(engine: Any, tensors: Mapping[Name, Tensor], numbers: Mapping[str, Any]) -> None:
    """Makes the state of the engine what it was: tensors are copied into those that are there, so that who holds them
    keeps them; of Adam's state what is missing is made, and what was not there yet is taken away. ValueError, before
    anything is changed, where the model is another one. In ZeRO 3 a collective."""
    live, masters = dict(tensors_of(engine)), list(_masters(engine))
    _check(live, tensors, numbers, len(masters))
    zero3 = hasattr(engine.optimizer, "persistent_parameters")
    if zero3:  # whole parameters go; what is put back are their partitions
        engine.optimizer.checkpoint_event_prologue()
    for name, kept in tensors.items():
        if name.kind != "state":
            live[name].copy_(kept)
    numbers = deepcopy(dict(numbers))
    for number, (master, inner, _) in enumerate(masters):
        of_master = {name.key: kept for name, kept in tensors.items() if name[:2] == ("state", number)}
        _put_state_back(inner, master, of_master, numbers["state"][number])
    if zero3:
        engine.optimizer.checkpoint_event_epilogue()
    _put_numbers_back(engine, numbers)


def _put_state_back(inner: Any, master: Tensor, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    if not tensors and not numbers:
        inner.state.pop(master, None)
        return
    state = inner.state[master]
    for key in [key for key in state if key not in tensors and key not in numbers]:
        del state[key]
    for key, kept in tensors.items():
        there = state.get(key)
        if isinstance(there, Tensor) and there.shape == kept.shape and there.dtype == kept.dtype:
            there.copy_(kept)
        else:  # a step that Adam counts in a tensor lies on the CPU
            state[key] = kept.clone().to(master.device if kept.dim() else kept.device)
    state.update(numbers)


def _put_numbers_back(engine: Any, numbers: Mapping[str, Any]) -> None:
    for inner, groups in zip(inner_optimizers(engine.optimizer), numbers["groups"], strict=True):
        for group, kept in zip(inner.param_groups, groups, strict=True):
            group.update(kept)
    for scaler, kept in zip(_scalers(engine), numbers["scaling"], strict=True):
        vars(scaler).update(kept)
    for name, kept in numbers["counters"].items():
        setattr(engine, name, kept)
    if numbers["scheduler"] is not None and own(engine, "lr_scheduler") is not None:
        engine.lr_scheduler.load_state_dict(numbers["scheduler"])
    restore_rng(numbers["rng"])


def _check(
    live: Mapping[Name, Tensor], tensors: Mapping[Name, Tensor], numbers: Mapping[str, Any], masters: int
) -> None:
    there = {name: (tuple(t.shape), t.dtype) for name, t in live.items() if name.kind != "state"}
    kept = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items() if name.kind != "state"}
    if there != kept or len(numbers["state"]) != masters:
        other = sorted(name for name in {*there, *kept} if there.get(name) != kept.get(name))
        which = f"{other[0].kind} {other[0].number}" if other else "the number of optimizer groups"
        raise ValueError(f"the engine's model is not the one that was kept: {which} is another")


def _of_model(engine: Any) -> Iterator[tuple[Name, Tensor]]:
    for number, parameter in enumerate(engine.module.parameters()):
        if hasattr(parameter, "ds_tensor"):
            yield Name("partition", number), parameter.ds_tensor.detach()
        else:
            yield Name("parameter", number), parameter.detach()
    for number, buffer in enumerate(engine.module.buffers()):
        yield Name("buffer", number), buffer.detach()


def _masters(engine: Any) -> Iterator[tuple[Tensor, Any, bool]]:
    """(what an optimizer updates, that optimizer, whether it is a tensor of its own and no parameter of the model)."""
    wrapper = engine.optimizer
    of_model, seen = {id(p) for p in engine.module.parameters()}, set[int]()
    flat = list(getattr(wrapper, "fp32_partitioned_groups_flat", ()))  # ZeRO 3 hands them to the inner one by turns
    for inner in inner_optimizers(wrapper):
        for master in (*flat, *(p for group in inner.param_groups for p in group["params"])):
            if id(master) not in seen:
                seen.add(id(master))
                yield master, inner, id(master) not in of_model


def _state(inner: Any, master: Tensor) -> Mapping[str, Any]:
    """Empty before the first update; asking makes none."""
    state: Mapping[str, Any] = inner.state.get(master, {})
    return state


def _scalers(engine: Any) -> list[Any]:
    wrapper = engine.optimizer
    parts = (wrapper, getattr(wrapper, "loss_scaler", None), getattr(wrapper, "loss_scale_config", None))
    return [part for part in parts if hasattr(part, "__dict__")]
