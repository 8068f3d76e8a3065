"""A training in plain torch (one process, DDP, FSDP 2, tensor parallelism by DTensor), with what the hooks ask of an
engine. Nothing of torch is replaced: the optimizers' own step hooks tell of each update, a hook of the loss's tensor of
each backward pass, and the passes' own end of the whole gradients, before the loop clips them.

The loss of a step is the one that its gradient is of: each micro-batch's, times what arrives at it in the backward pass
(1 / accumulation where the loop divides after `hook.loss`, 1 where it divided before), without the loss scale.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from trainer_hooks.sample.engine_calls import StepHook
from trainer_hooks.sample.logits import watch_outputs
from trainer_hooks.sample.owners import local

__all__ = ["Optimizers", "TorchEngine", "optimizer_of", "whole"]

_SCALED = 1024.0
"""What arrives at a loss is at most 1, or a few ranks; a loss scale is more."""


class Optimizers:
    """Several optimizers as one: their groups, one after the other."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = tuple(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def optimizer_of(given: Any) -> Any:
    """The optimizer itself, or `Optimizers` of several, without what wraps them (Lightning, accelerate)."""
    found = list(_flat(given))
    return found[0] if len(found) == 1 else Optimizers(found)


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, Mapping):
        given = given.values()
    several = given if not hasattr(given, "param_groups") else getattr(given, "optimizers", None)
    if several is not None:
        for one in several:
            yield from _flat(one)
    elif hasattr(given, "optimizer"):
        yield from _flat(given.optimizer)
    else:
        yield given


def whole(number: Any) -> Any:
    """A DTensor's number, which lies on every rank; anything else as it is. ValueError where each rank has a part of
    it: its sum would be a collective of ours."""
    placements = getattr(number, "placements", ())
    if any(not placed.is_replicate() for placed in placements):
        raise ValueError("each rank has a part of this DTensor: give number.full_tensor()")
    return local(number)


class TorchEngine:
    """Of one model and its optimizers. Calls its hook; the loop calls `loss` alone."""

    lr_scheduler: Any = None

    def __init__(self, model: Any, optimizer: Any, *, scaler: Any = None, step: int = 0) -> None:
        """`scaler`: torch's GradScaler, where there is one: an update that it skips calls no optimizer. `step`:
        completed updates of the run so far."""
        self.outermost = model
        self.module = _inner(model)
        self.optimizer = optimizer_of(optimizer)
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.global_steps, self.skipped_steps = int(step), 0
        parameters = list(self.module.parameters())
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self._world = dist.get_world_size() if dist.is_initialized() else 1
        meshes = {p.device_mesh for p in parameters if hasattr(p, "device_mesh")}
        strategy = getattr(getattr(model, "sharding_strategy", None), "name", "NO_SHARD")  # FSDP 1
        self.has_whole_gradients = not meshes and strategy == "NO_SHARD"
        shards = 1 if strategy == "NO_SHARD" else model.process_group.size()
        self.copies_of_state = self._world // shards
        """Ranks that hold the same element of the state. A DTensor tells its own, see `Replicas.share`."""
        self._averages = self._world == 1 or bool(meshes) or strategy != "NO_SHARD" or _has_ddp(model)
        self.dp_world_size = 1 if _is_tensor_parallel(self.module, meshes) else self._world
        self.gradient_scale = self._scale()
        """Of the gradients under way."""
        self._hook: StepHook | None = None
        self._handles: list[Any] = []
        self._coming = self._skipped = False
        self._stepped: set[int] = set()  # ids of the optimizers that have made the update under way
        self._micro_batches = self._expected = 0  # of the step under way, and of the one before
        self._arrived = False  # whether a backward pass has ended since the last update
        self._tells_losses = False
        self._last_loss: Callable[[], Any] = lambda: None  # the tensor that came last, while it lives

    # -- the hook's place

    def watched_by(self, hook: StepHook) -> None:
        """From now on the hook sees each loss and each update."""
        self._hook = hook
        for optimizer in self._optimizers():
            self._handles += [
                optimizer.register_step_pre_hook(self._update_comes),
                optimizer.register_step_post_hook(self._update_was_made),
                optimizer.register_load_state_dict_pre_hook(lambda *_: hook.load_coming()),
            ]
        if self.scaler is not None:
            self._watch_the_scaler(self.scaler, hook)
        self._handles.append(watch_outputs(self.outermost, hook))

    def unwatched(self) -> None:
        """Takes back what was put into the model, the optimizers and the scaler; an update that waits is reported."""
        self._made_by_some()
        for handle in self._handles:
            handle.remove()
        self._handles, self._hook = [], None
        if self.scaler is not None:
            self.scaler.__dict__.pop("update", None)

    def _optimizers(self) -> Sequence[Any]:
        return self.optimizer.optimizers if isinstance(self.optimizer, Optimizers) else (self.optimizer,)

    def _watch_the_scaler(self, scaler: Any, hook: StepHook) -> None:
        """With a scaler its update ends the step, whether it was skipped or not."""
        update = scaler.update

        def hooked(*args: Any, **kwargs: Any) -> Any:
            result = update(*args, **kwargs)
            with hook.guard("see what the scaler has done"):
                scale = self._scale()
                # an optimizer that takes the scale itself (fused) is called even where it skips
                fused = any(getattr(one, "_step_supports_amp_scaling", False) for one in self._optimizers())
                self._skipped = not self._stepped or (fused and scale < self.gradient_scale)
                if self._micro_batches:
                    self._made()
                self.gradient_scale = scale
            return result

        scaler.update = hooked

    def _scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    # -- a step

    def in_step(self, arguments: Sequence[Any] = (), options: Mapping[str, Any] = MappingProxyType({})) -> bool:
        """Whether an optimizer's step, with what it was given, is one of the training: a loss has come since the last
        update, or a closure will bring it, or the loop tells of none. torch's `get_state_dict` makes a step of its own,
        of an optimizer that has no state."""
        closure = arguments[1] if len(arguments) > 1 else options.get("closure")  # the first is the optimizer
        return self._micro_batches > 0 or closure is not None or not self._tells_losses

    def loss(self, loss: Any) -> None:
        """A micro-batch's, before its backward pass: a number, or () of any dtype. One without a graph counts as it is,
        and is added to those of the step's other micro-batches. The same tensor again counts once. Where the gradients
        of the losses before are gone, and no update was made, that step counts as skipped (not under FSDP)."""
        if (hook := self._hook) is None:
            return
        value = whole(loss)
        if isinstance(loss, Tensor) and self._last_loss() is loss:
            hook.guard.warn_once("hook.loss was called twice with one loss: it counts once")
            return
        self._made_by_some()
        if self._arrived and self.has_whole_gradients and not self._has_gradients():
            self._skipped = True
            self._made()
        self._micro_batches += 1
        self._tells_losses = True
        self._last_loss = weakref.ref(loss) if isinstance(loss, Tensor) else lambda: None
        if not (isinstance(value, Tensor) and value.requires_grad):
            hook.guard.warn_once("hook.loss was given a number without a graph: no norm of the gradient is measured")
            hook.loss_seen(torch.as_tensor(value, dtype=torch.float64), of_many=False)
            return
        kept = value.detach()

        def arrives(gradient: Tensor) -> None:
            with hook.guard("take the loss"):
                Variable._execution_engine.queue_callback(self._backward_ends)
                share = whole(gradient).detach().double() / self.gradient_scale
                if share.device.type == "cpu" and float(share) >= _SCALED:
                    raise ValueError("the loss is scaled, by an unknown scale: attach(…, scaler=scaler)")
                hook.loss_seen(kept.double() * share, of_many=False)

        loss.register_hook(arrives)

    def _backward_ends(self) -> None:
        """What DDP and FSDP do at its end has its own place in the same queue: this goes behind it."""
        Variable._execution_engine.queue_callback(self._backward_ended)

    def _has_gradients(self) -> bool:
        return any(p.grad is not None for p in self.module.parameters())

    def _backward_ended(self) -> None:
        self._arrived = True
        if (hook := self._hook) is not None:
            with hook.guard("take the gradient's norm"):
                if self._averages and self._may_be_last():
                    hook.gradients_whole()

    def _may_be_last(self) -> bool:
        """Whether this micro-batch may be the step's last: the step before had as many."""
        return self._micro_batches >= self._expected

    def _update_comes(self, _: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        if (hook := self._hook) is not None and not self._coming and self.in_step(arguments, options):
            self._coming = True
            with hook.guard("look before the step"):
                hook.update_coming()

    def _update_was_made(self, optimizer: Any, *_: Any) -> None:
        if not self.in_step():
            return
        self._stepped.add(id(optimizer))
        if (hook := self._hook) is not None and self.scaler is None and len(self._stepped) == len(self._optimizers()):
            with hook.guard("measure the step"):
                self._made()

    def _made_by_some(self) -> None:
        """Of several optimizers not all have made the last update: it is told of before the next one begins."""
        if self._stepped and self.scaler is None:
            self._made()

    def _made(self) -> None:
        if self._skipped and self._hook is not None and not self._coming:
            self._hook.update_coming()
        self.global_steps += 1
        self.skipped_steps += self._skipped
        hook, self._coming, self._expected = self._hook, False, self._micro_batches
        self._micro_batches, self._arrived = 0, False
        self._stepped.clear()
        if hook is not None:
            hook.step_made()
        self._skipped = False

    # -- what the hooks ask of an engine

    def was_step_applied(self) -> bool:
        return not self._skipped

    def zero_optimization_stage(self) -> int:
        return 0 if self.has_whole_gradients else 3

    def gradient_accumulation_steps(self) -> int | None:
        """Of the last step; None before the first."""
        return self._expected or None

    def train_batch_size(self) -> int | None:
        """Not known: `position` tells it."""
        return None

    def gradient_clipping(self) -> float | None:
        """Not known: the loop clips."""
        return None

    def get_global_grad_norm(self) -> None:
        """The hook measures it, or the loop gives it."""

    def scale_in_force(self) -> float | None:
        return None if self.scaler is None else self.gradient_scale

    def precision(self) -> str | None:
        """fp16 with a scaler, else what the parameters are of. None of float32: autocast may compute in another."""
        dtype = next((p.dtype for p in self.module.parameters() if p.requires_grad), None)
        if self.scaler is not None:
            return "fp16"
        return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype) if dtype is not None else None


def _inner(model: Any) -> Any:
    """The module inside DDP and torch.compile, whose parameters have the model's own names."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, DistributedDataParallel):
            model = model.module
        else:
            return model


def _has_ddp(model: Any) -> bool:
    return any(isinstance(module, DistributedDataParallel) for module in model.modules())


def _is_tensor_parallel(module: Any, meshes: set[Any]) -> bool:
    """Whether ranks may share a batch: DTensors that FSDP 2 has not made, or over a mesh with a dimension more."""
    sharded = any(type(part).__name__.startswith("FSDP") for part in module.modules())
    names = {name for mesh in meshes for name in mesh.mesh_dim_names or ()}
    return bool(meshes) and (not sharded or bool(names & {"tp", "cp", "pp", "ep"}))
