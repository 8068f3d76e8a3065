"""A callback for OLMo-core's Trainer, over `attach(model=, optimizer=)`. This module needs ai2-olmo-core; nothing else
of the hooks does.

    trainer = trainer_config.build(train_module, data_loader)
    trainer.add_callback("sentinel", StabilityCallback(run="tr8"))
    trainer.fit()
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from olmo_core.train.callbacks import Callback

import trainer_hooks
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.export.outputs import state_folder
from trainer_hooks.hook import Hook
from trainer_hooks.learning_rate import formula_of
from trainer_hooks.sample.reading import Position
from trainer_hooks.start_decisions import StartDecisions

_TRAINER = "OLMo-core's Trainer (StabilityCallback)"


class StabilityCallback(Callback):  # type: ignore[misc]  # ai2-olmo-core is no requirement of ours: Any to mypy
    """One sample per optimizer step to the metrics journal and to /metrics, word of starts and saves. Of overrides.json
    it applies the LR, Adam's numbers, the reset of its moments, and the gradient's clipping; a start for which anything
    else is decided ends before its first step. KILL in the state folder ends the training. Nothing else that goes wrong
    in it reaches the training loop."""

    priority: ClassVar[int] = 0  # after OLMo-core's own saves: the one at step 0 makes an update of an empty state

    def __init__(
        self, *, run: str = "run", state_dir: str | os.PathLike[str] | None = None, **attach_options: Any
    ) -> None:
        """`attach_options` go to `attach` (port, announce, …)."""
        self.hook: Hook | None = None  # From the beginning of a training to its end
        self._guard = Guard()
        self._place: dict[str, Any] = {"run": run, "state_dir": state_dir}
        self._attach_options = {"trainer": _TRAINER, **attach_options}
        self._decisions: StartDecisions | None = None
        self._requests: StepRequests | None = None
        self._in_step = False  # Whether a forward pass is one of the training: not the dry run's, nor an evaluation's
        self._ends = "error: training ended without a word"
        self._stopped: str | None = None  # Why all ranks were asked to stop
        self._samples = 0  # fed to the whole run, over all ranks
        self._seqlen: int | None = None  # of the last batch
        self._left: dict[str, Any] = {}  # what the checkpoint that was loaded holds of us
        self._saved: SimpleQueue[tuple[Path, dict[str, int]]] = SimpleQueue()  # by whichever thread has saved
        self._at_save: dict[int, dict[str, int]] = {}  # {step of a save under way: what was fed by then}

    # -- a training's beginning and end

    def pre_train(self) -> None:
        """The checkpoint is loaded: applies what was decided, attaches, and reports what the attempt runs with.
        OverridesError where a decided change can't be applied."""
        trainer, module = self.trainer, self.trainer.train_module
        step = int(trainer.global_step)
        decided = trainer_hooks.decisions(**self._place, step=step, client_state=self._left)
        nothing = decided.overrides is None
        with self._guard("look at what the start changes") if nothing else nullcontext():
            decided.apply(module.optim, _schedule(module, trainer))
            module.max_grad_norm = decided.clip(float(module.max_grad_norm or 0.0)) or None
        with self._guard("attach") if nothing else nullcontext():
            self._attach(trainer, decided, step)
        folder = state_folder(self._place["state_dir"], self._place["run"])
        self._requests, self._stopped = StepRequests.of_training(folder, self._guard, {}), None

    def post_train(self) -> None:
        """The end of fit; the last save is still to come."""
        trainer, planned = self.trainer, self.trainer.max_steps
        step = int(trainer.global_step)
        whole = not trainer.is_canceled and (planned is None or step >= planned)
        told = trainer._cancel_reason if trainer.is_canceled else f"at step {step} of {planned}"
        self._ends = self._stopped or ("finished" if whole else f"stopped: {told}")

    def on_error(self, exc: BaseException) -> None:
        """An error that ends fit."""
        self._ends = f"error: {type(exc).__name__}: {exc}"

    def close(self) -> None:
        """All saves are made: reports the end."""
        self._report_saves()
        hook, self.hook, self._guard.outer, self._decisions = self.hook, None, None, None
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()
        self.trainer.train_module.__dict__.pop("model_forward", None)
        if hook is not None:
            hook.close(self._ends)

    # -- a step

    def pre_step(self, batch: dict[str, Any]) -> None:
        """Counts what is fed."""
        self._in_step = True
        with self._guard("count what is fed"):
            tokens = batch["input_ids"]
            ranks = self.trainer.global_batch_size // self.trainer.rank_batch_size
            self._samples += int(tokens.shape[0]) * ranks
            self._seqlen = int(tokens.shape[1])
            if self.hook is not None:
                self.hook.batch_seen(tokens)

    def post_train_batch(self) -> None:
        """After each update: ends the training, on all ranks after the same step, where a person asks by KILL."""
        self._in_step = False
        self._report_saves()
        if self._requests is not None:
            due = self._requests.at_boundary()
            if due.stop and self._stopped is None:
                self._stopped = due.stop
                self.trainer.cancel_run(due.stop, no_sync=True)

    # -- a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """On every rank, for each save: what was fed and decided so far."""
        state: dict[str, Any] = {"samples": self._samples}
        with self._guard("leave word for a restart"):
            self._at_save[int(self.trainer.global_step)] = self._fed()
            if self.hook is not None:
                self.hook.save_coming()
            if self._decisions is not None:
                self._decisions.once_done(state)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What an earlier attempt left."""
        with self._guard("read what an earlier attempt left"):
            self._left = dict(state_dict)
            self._samples = int(self._left.get("samples", 0))

    def post_checkpoint_saved(self, path: Any) -> None:
        """A save is whole; of an asynchronous one another thread says so, steps later."""
        with self._guard("see the checkpoint"):
            tag = Path(str(path))
            step = int(tag.name.removeprefix("step"))
            self._saved.put((tag, {"global_step": step, **self._at_save.pop(step, {})}))

    def _report_saves(self) -> None:
        with self._guard("report the checkpoint"):
            while not self._saved.empty():
                path, facts = self._saved.get_nowait()
                if self.hook is not None:
                    self.hook.checkpoint_saved(path.name, **facts)

    def _attach(self, trainer: Any, decided: StartDecisions, step: int) -> None:
        module = trainer.train_module
        self.hook = trainer_hooks.attach(
            model=module.model,
            optimizer=module.optim,
            step=step,
            position=lambda: Position(**self._fed(), seqlen=self._seqlen),
            decisions=decided,
            **self._place,
            **self._attach_options,
        )
        self._decisions = decided
        self._guard.outer = self.hook.guard
        self.hook.close_at_exit()
        with self._guard("see the losses"):
            self._see_losses(module)
        with self._guard("report the start"):
            tokens = int(trainer.rank_batch_size)
            self.hook.run_started(
                total_steps=trainer.max_steps,
                accumulation_steps=max(1, tokens // int(module.rank_microbatch_size)),
                first_sample_index=self._samples,
                consumed_tokens=int(trainer.global_train_tokens_seen),
            )
            self.hook.saves_to(trainer.save_folder)

    def _see_losses(self, module: Any) -> None:
        """Each micro-batch's loss, before its backward pass: the module's forward pass gives it to nobody else."""
        forward = module.model_forward

        def seen(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            if self._in_step and self.hook is not None and getattr(output, "loss", None) is not None:
                self.hook.loss(output.loss)
            return output

        module.model_forward = seen

    def _fed(self) -> dict[str, int]:
        return {
            "consumed_samples": self._samples,
            "consumed_tokens": int(self.trainer.global_train_tokens_seen),
        }


def _schedule(module: Any, trainer: Any) -> Any:
    """The LR as a formula of the updates; None where its scheduler is none, or counts tokens."""
    scheduler, group = module.scheduler, module.optim.param_groups[0]
    peak, total = float(group.get("initial_lr") or group["lr"]), trainer.max_steps
    if total is None or (scheduler is not None and scheduler.units != "steps"):
        return None
    if scheduler is None:
        return formula_of(lambda _: peak, peak, 0, total)
    warmup = getattr(scheduler, "warmup", None)
    if warmup is None:
        warmup = round(total * (getattr(scheduler, "warmup_fraction", None) or 0.0))
    return formula_of(lambda step: float(scheduler.get_lr(peak, step, total)), peak, int(warmup), total, first=0)
