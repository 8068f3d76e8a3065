"""A training that accelerate runs without DeepSpeed (one process, DDP, FSDP), with what the hooks ask of an engine."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trainer_hooks.sample.engine_calls import StepHook, before
from trainer_hooks.sample.logits import watch_outputs


def why_no_engine(trainer: Any) -> str | None:
    """Why this training can't be measured, as a phrase; None where it can."""
    if getattr(trainer, "is_deepspeed_enabled", False):
        return None
    kind = str(getattr(trainer.accelerator.distributed_type, "value", trainer.accelerator.distributed_type))
    if kind not in ("NO", "FSDP") and not kind.startswith("MULTI_"):
        return f"accelerate trains it by {kind}"
    if trainer.args.n_gpu > 1:
        return "nn.DataParallel holds several GPUs in one process: start one process for each GPU"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "parallelism_config deals one batch over several ranks"
    return None


class AccelerateEngine:
    """Calls its hook where accelerate is asked to differentiate and to clip, and where the callback tells of an update.

    DDP has whole gradients and a whole state on each rank. FSDP has parts of both: of FSDP 2 (DTensors) each parameter
    tells its copies, of FSDP 1 the strategy does.
    """

    lr_scheduler = None  # Trainer's own is not the engine's

    def __init__(self, trainer: Any) -> None:
        self._accelerator, self._args, self._model = trainer.accelerator, trainer.args, trainer.model_wrapped
        self.module = self._accelerator.unwrap_model(self._model)
        self.optimizer = trainer.optimizer
        while hasattr(self.optimizer, "optimizer"):
            self.optimizer = self.optimizer.optimizer
        self.device = self._accelerator.device
        self.dp_world_size = int(self._accelerator.num_processes)
        self.has_whole_gradients = str(getattr(self._accelerator.distributed_type, "value", "")) != "FSDP"
        self.copies_of_state = self.dp_world_size if self.has_whole_gradients else 1
        """Ranks that hold the same element of the state. 1 of FSDP 2, see `Replicas.share`."""
        strategy = getattr(getattr(self._model, "sharding_strategy", None), "name", None)
        if strategy is not None and not self.has_whole_gradients:
            # FSDP 1: its shard group is the whole world, or a node's (HYBRID_SHARD)
            shards = 1 if strategy == "NO_SHARD" else self._model.process_group.size()
            self.copies_of_state = dist.get_world_size() // shards
        self.global_steps = int(trainer.state.global_step)
        self.skipped_steps = 0
        self._configured_clipping = trainer.args.max_grad_norm
        self._hook: StepHook | None = None
        self._watching: Any = None  # the handle of the model's forward hook
        self._coming = False  # whether the hook has seen the gradients of the update under way

    def watched_by(self, hook: StepHook) -> None:
        """From now on the hook sees each loss and each update."""
        self._hook = hook
        # Trainer has divided the loss
        before(self._accelerator, "backward", lambda loss, *_, **__: hook.loss_seen(loss, of_many=False))
        before(self._accelerator, "clip_grad_norm_", lambda *_, **__: self.update_coming())
        self._watching = watch_outputs(self._model, hook)

    def update_coming(self) -> None:
        """The gradients are whole: told where they are clipped, and once more before the update."""
        if self._hook is not None and not self._coming:
            self._coming = True
            self._hook.update_coming()

    def update_made(self) -> None:
        """After the optimizer's step."""
        self._coming = False
        self.global_steps += 1
        self.skipped_steps += not self.was_step_applied()
        if self._hook is not None:
            self._hook.step_made()

    def close(self) -> None:
        """Takes back what was put into accelerate and into Trainer's arguments."""
        for name in ("backward", "clip_grad_norm_"):
            self._accelerator.__dict__.pop(name, None)
        self._args.max_grad_norm = self._configured_clipping
        if self._watching is not None:
            self._watching.remove()

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        """On the outermost module, which no compilation takes in."""
        return self._model.register_forward_pre_hook(hook, **options)

    def was_step_applied(self) -> bool:
        return not self._accelerator.optimizer_step_was_skipped

    def zero_optimization_stage(self) -> int:
        return 0 if self.has_whole_gradients else 3

    def gradient_accumulation_steps(self) -> int:
        return int(self._args.gradient_accumulation_steps)

    def train_batch_size(self) -> int:
        return int(self._args.train_batch_size) * self.gradient_accumulation_steps() * self.dp_world_size

    def gradient_clipping(self) -> float:
        return float(self._args.max_grad_norm or 0.0)

    def clip_by(self, norm: float) -> None:
        """Trainer reads its argument anew at each step."""
        self._args.max_grad_norm = norm

    def get_global_grad_norm(self) -> None:
        """The hook measures it, before accelerate clips."""

    def fp16_enabled(self) -> bool:
        return str(self._accelerator.mixed_precision) == "fp16" or self._trained_in() is torch.float16

    def bfloat16_enabled(self) -> bool:
        return str(self._accelerator.mixed_precision) == "bf16" or self._trained_in() is torch.bfloat16

    def _trained_in(self) -> torch.dtype | None:
        return next((p.dtype for p in self.module.parameters() if p.requires_grad), None)
