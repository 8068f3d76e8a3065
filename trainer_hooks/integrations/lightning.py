"""A callback for Lightning's Trainer, over `attach(model=, optimizer=)`. This module needs lightning (or the package
pytorch_lightning); nothing else of the hooks does.

    trainer = lightning.Trainer(..., callbacks=[StabilityCallback(run="tr8", warmup_steps=2000)])
    trainer.fit(model, loader, ckpt_path="last")
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import trainer_hooks
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.export.outputs import state_folder
from trainer_hooks.hook import Hook
from trainer_hooks.sample.reading import Position
from trainer_hooks.start_decisions import StartDecisions

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

_TRAINER = "Lightning's Trainer (StabilityCallback)"


class StabilityCallback(Callback):  # type: ignore[misc]  # lightning is no requirement of ours: Any to mypy
    """One sample per optimizer step to the metrics journal and to /metrics, word of starts, saves and validations. Of
    overrides.json it applies the LR, Adam's numbers, the reset of its moments, and the gradient's clipping; a start for
    which anything else is decided ends before its first step. KILL in the state folder ends the training. Nothing else
    that goes wrong in it reaches the training loop."""

    def __init__(
        self,
        *,
        run: str = "run",
        state_dir: str | os.PathLike[str] | None = None,
        warmup_steps: int = 0,
        validation_metric: str = "val_loss",
        full_seqlen: int | None = None,
        **attach_options: Any,
    ) -> None:
        """`warmup_steps` of the LambdaLR that is the training's first scheduler: Lightning does not know them, and a
        rung that changes the LR needs them. `validation_metric`: the logged one that is the run's validation loss.
        `full_seqlen`: tokens of its samples; None: not known. `attach_options` go to `attach` (port, announce, …)."""
        super().__init__()
        self.hook: Hook | None = None  # From the beginning of a training to its end
        self._guard = Guard()
        self._place: dict[str, Any] = {"run": run, "state_dir": state_dir}
        self._attach_options = {"trainer": _TRAINER, **attach_options}
        self._warmup_steps = warmup_steps
        self._validation_metric = validation_metric
        self._full_seqlen = full_seqlen
        self._decisions: StartDecisions | None = None
        self._requests: StepRequests | None = None
        self._stopped: str | None = None  # Why all ranks were asked to stop
        self._fed = {"samples": 0, "tokens": 0}  # by the whole run, over all ranks
        self._seqlen: int | None = None  # of the last batch
        self._left: dict[str, Any] = {}  # what the checkpoint that was loaded holds of us
        self._step = 0
        self._saves_of: Any = None  # the trainer whose saves are reported

    # -- a training's beginning and end

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """The checkpoint is loaded: applies what was decided, attaches, and reports what the attempt runs with.
        OverridesError where a decided change can't be applied."""
        self._end("error: training began anew")
        self._step = int(trainer.global_step)
        decided = trainer_hooks.decisions(**self._place, step=self._step, client_state=self._left)
        nothing = decided.overrides is None
        with self._guard("look at what the start changes") if nothing else nullcontext():
            schedulers = [one.scheduler for one in trainer.lr_scheduler_configs if one.interval == "step"]
            decided.apply(
                trainer.optimizers,
                schedulers[0] if schedulers else None,
                warmup_steps=self._warmup_steps,
                total_steps=_total(trainer),
            )
            if trainer.gradient_clip_algorithm != "value":
                trainer.gradient_clip_val = decided.clip(float(trainer.gradient_clip_val or 0.0)) or None
        with self._guard("attach") if nothing else nullcontext():
            self._attach(trainer, decided)
        folder = state_folder(self._place["state_dir"], self._place["run"])
        self._requests, self._stopped = StepRequests.of_training(folder, self._guard, {}), None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Reports the end of fit, planned or by a request."""
        with self._guard("report the end"):
            at, planned = int(trainer.global_step), _total(trainer)
            whole = planned is None or at >= planned
            self._end(self._stopped or ("finished" if whole else f"stopped: at step {at} of {planned}"))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Reports an error that ends fit."""
        self._end(f"error: {type(exception).__name__}: {exception}")

    # -- a step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Counts what is fed, where the batch is tokens, or has them as `input_ids` or first of several."""
        with self._guard("count what is fed"):
            tokens = _tokens(batch)
            if tokens is not None:
                rows, self._seqlen = int(tokens.shape[0]), int(tokens.shape[1])
                self._fed["samples"] += rows * int(trainer.world_size)
                self._fed["tokens"] += rows * self._seqlen * int(trainer.world_size)
                if self.hook is not None:
                    self.hook.batch_seen(tokens)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """A micro-batch's loss, as Lightning has divided it by the accumulation."""
        if self.hook is not None:
            self.hook.loss(loss)

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """After each update: ends the training, on all ranks after the same step, where a person asks by KILL."""
        if self._requests is not None and int(trainer.global_step) != self._step:
            self._step = int(trainer.global_step)
            due = self._requests.at_boundary()
            self._stopped = self._stopped or due.stop
            trainer.should_stop = trainer.should_stop or due.stop is not None

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Reports the validation loss, where it was logged."""
        with self._guard("report the validation"):
            loss = trainer.callback_metrics.get(self._validation_metric)
            if self.hook is not None and loss is not None and not trainer.sanity_checking:
                self.hook.validation(float(loss), self._full_seqlen)

    # -- a checkpoint

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """On every rank, before a checkpoint is written."""
        if self.hook is not None:
            self.hook.save_coming()

    def state_dict(self) -> dict[str, Any]:
        """What the checkpoint holds of the callback: what was fed and decided so far."""
        state: dict[str, Any] = {"fed": dict(self._fed)}
        with self._guard("leave word for a restart"):
            if self._decisions is not None:
                self._decisions.once_done(state)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What an earlier attempt left."""
        with self._guard("read what an earlier attempt left"):
            self._left = dict(state_dict)
            self._fed = {name: int(self._left.get("fed", {}).get(name, 0)) for name in self._fed}

    def _attach(self, trainer: Any, decided: StartDecisions) -> None:
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.hook = trainer_hooks.attach(
            **_measured(trainer),
            scaler=scaler,
            step=self._step,
            position=self._position,
            decisions=decided,
            **self._place,
            **self._attach_options,
        )
        self._decisions = decided
        self._guard.outer = self.hook.guard
        self.hook.close_at_exit()
        with self._guard("report the start"):
            accumulation = int(trainer.accumulate_grad_batches)
            before_first = {"first_sample_index": self._fed["samples"], "consumed_tokens": self._fed["tokens"]}
            self.hook.run_started(total_steps=_total(trainer), accumulation_steps=accumulation, **before_first)
        with self._guard("watch the saves"):
            saves = trainer.checkpoint_callback
            if getattr(saves, "dirpath", None):
                self.hook.saves_to(saves.dirpath)
            _after_each_save(trainer, self._saved)
            self._saves_of = trainer

    def _saved(self, path: Any) -> None:
        with self._guard("report the checkpoint"):
            if self.hook is not None:
                fed = {f"consumed_{name}": count for name, count in self._fed.items()}
                self.hook.checkpoint_saved(Path(path).name, **fed)

    def _position(self) -> Position:
        counted = self._fed["samples"] > 0
        return Position(
            consumed_samples=self._fed["samples"] if counted else None,
            consumed_tokens=self._fed["tokens"] if counted else None,
            seqlen=self._seqlen,
        )

    def _end(self, reason: str) -> None:
        hook, self.hook, self._guard.outer, self._decisions = self.hook, None, None, None
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()
        if self._saves_of is not None:
            self._saves_of.__dict__.pop("save_checkpoint", None)
            self._saves_of = None
        if hook is not None:
            hook.close(reason)


def _measured(trainer: Any) -> dict[str, Any]:
    """What is attached to: DeepSpeed's engine, or the model as its strategy wraps it, and its optimizers."""
    model = trainer.strategy.model
    if hasattr(model, "zero_optimization_stage"):
        return {"engine": model}
    return {"model": model, "optimizer": trainer.optimizers}


def _total(trainer: Any) -> int | None:
    steps = trainer.estimated_stepping_batches
    return int(steps) if steps not in (-1, float("inf")) else None


def _tokens(batch: Any) -> Any:
    """(B, T) whole numbers; None where the batch has no such tensor at its first place."""
    if isinstance(batch, (list, tuple)) and batch:
        batch = batch[0]
    if hasattr(batch, "keys"):
        batch = batch.get("input_ids")
    whole = getattr(batch, "ndim", 0) == 2 and not batch.is_floating_point()
    return batch if whole else None


def _after_each_save(trainer: Any, saved: Any) -> None:
    save = trainer.save_checkpoint

    def hooked(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = save(filepath, *args, **kwargs)
        saved(filepath)
        return result

    trainer.save_checkpoint = hooked
