"""A training that accelerate runs without DeepSpeed (one process, DDP, FSDP), as one in plain torch: what Trainer and
accelerate know beside it."""

from __future__ import annotations

from typing import Any

from trainer_hooks.sample.engine_calls import StepHook, before
from trainer_hooks.sample.torch_engine import TorchEngine


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


class AccelerateEngine(TorchEngine):
    """Takes the loss where accelerate is asked to differentiate it."""

    def __init__(self, trainer: Any) -> None:
        self._accelerator, self._args = trainer.accelerator, trainer.args
        super().__init__(
            trainer.model_wrapped,
            trainer.optimizer,
            scaler=getattr(trainer.accelerator, "scaler", None),
            step=int(trainer.state.global_step),
        )
        self.module = self._accelerator.unwrap_model(trainer.model_wrapped)
        self.dp_world_size = int(self._accelerator.num_processes)
        self._configured_clipping = trainer.args.max_grad_norm

    def watched_by(self, hook: StepHook) -> None:
        super().watched_by(hook)
        before(self._accelerator, "backward", lambda loss, *_, **__: self._take(hook, loss))

    def _take(self, hook: StepHook, loss: Any) -> None:
        with hook.guard("take the loss"):
            self.loss(loss)

    def unwatched(self) -> None:
        super().unwatched()
        self._accelerator.__dict__.pop("backward", None)

    def close(self) -> None:
        """Takes back what was put into Trainer's arguments."""
        self._args.max_grad_norm = self._configured_clipping

    def _may_be_last(self) -> bool:
        return bool(self._accelerator.sync_gradients)

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        """On the outermost module, which no compilation takes in."""
        return self.outermost.register_forward_pre_hook(hook, **options)

    def gradient_accumulation_steps(self) -> int:
        return int(self._args.gradient_accumulation_steps)

    def train_batch_size(self) -> int:
        return int(self._args.train_batch_size) * self.gradient_accumulation_steps() * self.dp_world_size

    def gradient_clipping(self) -> float:
        return float(self._args.max_grad_norm or 0.0)

    def clip_by(self, norm: float) -> None:
        """Trainer reads its argument anew at each step."""
        self._args.max_grad_norm = norm

    def precision(self) -> str:
        if (computes_in := str(self._accelerator.mixed_precision)) in ("fp16", "bf16"):
            return computes_in
        return super().precision() or "fp32"

    def fp16_enabled(self) -> bool:
        return self.precision() == "fp16"
