"""What a step's state holds, read on each rank and reduced over the data-parallel ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer_hooks.adam_variance import is_partitioned, variance_tensors, variances

__all__ = ["Reading", "local_reading", "loss_scale", "reduced", "unmeasured_grad_norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one rank reads of a step, or all of them together; what `failed` holds no reading at all."""

    loss: float = 0.0
    """Mean over micro-batches; nan where the loss is."""

    l1: float = 0.0
    """Sum of sqrt(v)."""

    largest: float = 0.0
    """max of v, not of its root."""

    with_state: int = 0
    """Ranks whose optimizer has a v: none before the first update that was not skipped."""

    failed: int = 1
    """Ranks that could not read."""


def local_reading(engine: Any, micro_losses: Sequence[Tensor]) -> Reading:
    """This rank's reading of the step that was just made. RuntimeError when no loss of it was seen."""
    if not micro_losses:
        raise RuntimeError("no loss of this step was seen: engine.backward(loss) is where it is taken")
    loss = torch.stack([m.double() for m in micro_losses]).mean()
    tensors = list(variance_tensors(engine.optimizer))
    l1, largest = variances(tensors).tolist()
    return Reading(loss=float(loss), l1=l1, largest=largest, with_state=int(bool(tensors)), failed=0)


def reduced(reading: Reading, engine: Any) -> Reading:
    """Over the data-parallel ranks: mean of the loss; SUM and MAX of v's parts where v is partitioned."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return reading
    world = dist.get_world_size()
    share = 1 if is_partitioned(engine) else world  # replicated: a SUM would count it once per rank
    device = next(engine.module.parameters()).device
    parts = [reading.loss / world, reading.l1 / share, math.isnan(reading.largest)]
    sums = torch.tensor([*parts, reading.with_state, reading.failed], dtype=torch.float64, device=device)
    top = torch.tensor([reading.largest], dtype=torch.float64, device=device)
    dist.all_reduce(sums, dist.ReduceOp.SUM)
    dist.all_reduce(top, dist.ReduceOp.MAX)  # gloo's MAX may lose a nan; the SUM of nans does not
    loss, l1, nans, with_state, failed = sums.tolist()
    largest = math.nan if nans else float(top)
    return Reading(loss=loss, l1=l1, largest=largest, with_state=int(with_state), failed=int(failed))


def unmeasured_grad_norm(engine: Any) -> Tensor | None:
    """Global L2 norm of the gradient, before clipping, where DeepSpeed will not have one; None where it will.

    At stage 0 in fp32 (no wrapping optimizer) it never computes the norm, so it is taken before the step.
    """
    if hasattr(engine.optimizer, "optimizer"):
        return None
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)).double()) if gradients else None


def loss_scale(optimizer: Any) -> float | None:
    """The loss scale of fp16 training; None where there is none."""
    for name in ("cur_scale", "loss_scale"):
        scale = getattr(optimizer, name, None)
        if isinstance(scale, int | float) and scale > 0 and hasattr(optimizer, "optimizer"):
            return float(scale) if getattr(optimizer, "dynamic_loss_scale", True) or scale != 1 else None
    return None
