"""What is heard of one step, micro-batch by micro-batch, and what DeepSpeed's loss and norm of it are scaled by."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trainer_hooks.sample.own import has_own
from trainer_hooks.sample.reading import loss_scale
from trainer_hooks.sample.replicas import is_partitioned


class StepHeard:
    """What was heard of the step under way."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.digests: list[Tensor] = []
        self.logits: dict[str, Tensor] = {}
        self.of_many = True
        self.divided = True
        self.squares: Tensor | None = None
        self.squares_of = 0  # micro-batches, whose gradients these are
        self.given: Tensor | None = None  # the norm, as the loop has it
        self.loss_scale: float | None = None
        self.factor: Tensor | None = None
        self.lr: Tensor | None = None  # of the update, where it lies on a device

    def scaled_by(self, gradient: Tensor) -> None:
        """What DeepSpeed multiplies the loss with, read where it arrives at the loss; see `divided_at_the_loss`."""
        self.factor = gradient.detach().double()

    def many(self, engine: Any) -> int:
        """What each micro-batch's loss was divided by."""
        if has_own(engine, "gradient_scale"):
            return max(1, len(self.losses))
        return int(engine.gradient_accumulation_steps()) if self.of_many else 1

    def scale(self, engine: Any) -> Tensor | float:
        """The loss scale that the gradients really carry, dimensionless."""
        if has_own(engine, "gradient_scale"):  # what stands for an engine knows it
            return float(engine.gradient_scale)
        if self.factor is None:
            return 1.0
        return self.factor * (self.many(engine) if self.divided else 1)


def divided_at_the_loss(engine: Any, loss: Tensor) -> bool:
    """Whether the gradient at the loss is divided by the number of micro-batches already. DeepSpeed 0.18.3 to 0.19.5
    divides at the model's output, by a hook set in forward: so at the loss only where the loss is that output (Hugging
    Face's models). All other versions divide the loss."""
    at_the_output = has_own(engine, "_backward_prologue_per_tensor")
    of_late = has_own(engine, "_running_engine_backward_count")  # it then leaves the output's alone
    return of_late or not at_the_output or bool(getattr(loss, "_backward_hooks", None))


def given_norm(engine: Any, step: StepHeard) -> Tensor | float | None:
    """DeepSpeed's global norm before clipping, without the loss scale that its fp16 optimizers divide by; inf of a step
    that an overflow has skipped (before 0.19.8 DeepSpeed has the norm of the step before there).

    Stage 3, and at stage 0 the wrapper of FusedAdam, divide by the loss scale after the step, not by the gradients':
    where the scale doubles, the norm is half. At stage 0 the gradients may not carry a scale (0.19.8 does not scale the
    loss there), and the wrapper of the other Adams does not divide.
    """
    norm, optimizer = engine.get_global_grad_norm(), engine.optimizer
    if getattr(optimizer, "overflow", False) is True:
        return math.inf
    after = loss_scale(engine)
    if norm is None or step.loss_scale is None or after is None:
        return norm  # type: ignore[no-any-return]
    if not is_partitioned(engine):
        carried = norm * after if hasattr(optimizer, "fp32_groups_flat") else norm
        return carried / step.scale(engine)  # type: ignore[no-any-return]
    return norm * (after / step.loss_scale) if int(engine.zero_optimization_stage()) == 3 else norm  # type: ignore[no-any-return]
