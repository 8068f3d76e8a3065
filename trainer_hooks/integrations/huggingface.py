"""A callback for Hugging Face's Trainer with DeepSpeed. This module needs transformers; nothing else of the hooks does.

    trainer = Trainer(model=model, args=TrainingArguments(deepspeed=config, ...), ...)
    trainer.add_callback(StabilityCallback(trainer, run="tr8"))
    trainer.train()

Trainer passes a callback neither the engine nor the batches: the callback keeps the trainer, whose `model_wrapped` is
the engine that accelerate made, and counts samples and tokens where the engine's forward is called.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import deepspeed
from transformers import TrainerCallback

from sentinel.vocabulary.loss_ratio import LossMinimum
from trainer_hooks.errors import Guard, exit_reason
from trainer_hooks.hook import Hook, Position, attach

__all__ = ["StabilityCallback"]

_KEY = "sentinel"
"""The callback's state among the `stateful_callbacks` of trainer_state.json. Not by ExportableState: Trainer's next
save raises KeyError after a checkpoint without the callback, and restore_callback_states_from_checkpoint builds a
callback anew from JSON, which a trainer is not."""


@dataclass(slots=True, kw_only=True)
class Fed:
    """What the model was trained on, over all ranks: by the batches' shapes, padding included, without a sync.

    Each of the data-parallel `ranks` counts as much as this one. `samples` and `tokens` are of the whole run, None if
    an earlier part was not counted; `step_samples` and `seqlen` (of the longest micro-batch) of the step under way.
    """

    ranks: int
    samples: int | None
    tokens: int | None
    step_samples: int = 0
    seqlen: int | None = None

    def micro_batch(self, samples: int, seqlen: int) -> None:
        """One micro-batch goes into the model on this rank."""
        whole = samples * self.ranks
        self.step_samples += whole
        self.seqlen = max(seqlen, self.seqlen or 0)
        if self.samples is not None:
            self.samples += whole
        if self.tokens is not None:
            self.tokens += whole * seqlen


class StabilityCallback(TrainerCallback):  # type: ignore[misc]  # transformers is no requirement of ours: Any to mypy
    """One sample per optimizer step to the metrics journal and to /metrics, and word of starts, saves and evaluations.
    Added to the trainer on every rank. Nothing that goes wrong in it reaches the training loop."""

    def __init__(
        self,
        trainer: Any,
        *,
        validation_metric: str = "eval_loss",
        full_seqlen: int | None = None,
        applies: Iterable[str] = (),
        **attach_options: Any,
    ) -> None:
        """`attach_options` go to `attach` (state_dir, run, address, port, mpu, …).

        `validation_metric` is the metric of evaluate() that counts as the run's validation loss: with several sets that
        of a set that stays the same, `eval_wiki_loss`. `full_seqlen` is the length that it is measured at, in tokens;
        None where that is not known. `applies` names the keys of overrides.json that the training script itself reads
        and applies, such as "free": the callback applies none.
        """
        self.hook: Hook | None = None
        """From the beginning of a training to its end."""
        self._guard = Guard()
        self._trainer = trainer
        self._validation_metric = validation_metric
        self._full_seqlen = full_seqlen
        trainers_name = "Hugging Face's Trainer (StabilityCallback)"
        self._attach_options = {"applies": tuple(applies), "trainer": trainers_name, **attach_options}
        self._fed = Fed(ranks=1, samples=0, tokens=0)
        self._lr_warmup_steps: int | None = None
        self._watching: Any = None  # the handle of the engine's forward hook

    @property
    def errors(self) -> int:
        """Errors that were caught and kept from the training loop."""
        return self._guard.errors

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """The engine is made and the checkpoint loaded: attaches, and reports what the attempt runs with."""
        with self._guard("attach"):
            self._end("error: training began anew")  # Trainer does so with a smaller batch after an out-of-memory
            engine = self._trainer.model_wrapped
            if not isinstance(engine, deepspeed.DeepSpeedEngine):
                raise TypeError(
                    f"Trainer runs a {type(engine).__name__}, not a DeepSpeed engine: deepspeed=… is not set"
                )
            self._begin(engine, args, state)

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Before a step's first micro-batch."""
        with self._guard("look before the step"):
            self._fed.step_samples, self._fed.seqlen = 0, None

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """After the update and before a save: leaves word for a restart in what becomes trainer_state.json."""
        with self._guard("leave word for a restart"):
            if self.hook is not None:
                state.stateful_callbacks[_KEY] = {
                    "attempt": self.hook.attempt,
                    "consumed_samples": self._fed.samples,
                    "consumed_tokens": self._fed.tokens,
                    "loss_minimum": [list(pair) for pair in self.hook.loss_minimum.state()],
                }

    def on_evaluate(
        self, _args: Any, _state: Any, _control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Reports the validation loss, where evaluate() measured the metric that counts as it."""
        with self._guard("report the validation"):
            loss = (metrics or {}).get(self._validation_metric)
            if self.hook is not None and loss is not None:
                self.hook.validation(float(loss), self._full_seqlen)

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reports the checkpoint: DeepSpeed's part is whole on every rank, other ranks may yet write an rng_state."""
        with self._guard("report the checkpoint"):
            if self.hook is not None and not args.save_only_model:  # weights alone are nothing to go on from
                tag = f"checkpoint-{state.global_step}"
                fed = self._fed
                self.hook.checkpoint_saved(tag, consumed_samples=fed.samples, consumed_tokens=fed.tokens)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reports the end of train(), planned or by a callback. An error ends the process instead: see `_at_exit`."""
        with self._guard("report the end"):
            at, planned = int(state.global_step), int(state.max_steps)
            self._end("finished" if at >= planned else f"stopped: at step {at} of {planned}")

    def _begin(self, engine: Any, args: Any, state: Any) -> None:
        before: dict[str, Any] = {}
        resumed = int(state.global_step) or None
        with self._guard("read what an earlier attempt left"):
            before = _left_behind(state)
        self._fed = Fed(
            ranks=int(engine.dp_world_size),
            samples=before.get("consumed_samples") if resumed else 0,
            tokens=before.get("consumed_tokens") if resumed else 0,
        )
        self.hook = attach(
            engine,
            position=self._position,
            loss_minimum=before.get("loss_minimum"),
            **self._attach_options,
        )
        self._guard.outer = self.hook.guard  # counted in sentinel_hook_errors_total
        atexit.register(self._at_exit)
        with self._guard("count what is fed"):
            self._watching = engine.register_forward_pre_hook(self._forward, with_kwargs=True)
        with self._guard("report the start"):
            if engine.lr_scheduler is None:  # else the schedule is DeepSpeed's own, and not of Trainer's arguments
                self._lr_warmup_steps = int(args.get_warmup_steps(state.max_steps)) or None
            by_steps = str(getattr(args.save_strategy, "value", args.save_strategy)) == "steps"
            self.hook.run_started(
                parent_attempt=before.get("attempt"),
                resumed_from=resumed,
                seed=int(args.seed if args.data_seed is None else args.data_seed),
                first_sample_index=None if resumed and args.ignore_data_skip else self._fed.samples,
                consumed_tokens=self._fed.tokens,
                lr=float(engine.optimizer.param_groups[0]["lr"]),
                full_seqlen=self._full_seqlen,
                total_steps=int(state.max_steps),
                checkpoint_interval_steps=int(state.save_steps) if by_steps else None,
                settings=args.to_sanitized_dict(),
            )

    def _forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's forward pre-hook of the engine, which no compilation of the model takes in."""
        with self._guard("count what is fed"):
            if module.module.training:
                name = getattr(module.module, "main_input_name", "input_ids")
                shape = (kwargs[name] if name in kwargs else args[0]).shape  # (B, T)
                self._fed.micro_batch(shape[0], shape[1])

    def _position(self) -> Position:
        """For the hook: where the step that was just made stands."""
        fed = self._fed
        return Position(
            consumed_samples=fed.samples,
            consumed_tokens=fed.tokens,
            seqlen=fed.seqlen,
            lr_warmup_steps=self._lr_warmup_steps,
            global_batch_samples=fed.step_samples or None,
        )

    def _at_exit(self) -> None:
        """The process ends before the training does: by an uncaught error, as a rule."""
        with self._guard("report the end"):
            self._end(exit_reason())

    def _end(self, reason: str) -> None:
        hook, self.hook, self._guard.outer = self.hook, None, None
        if hook is None:
            return
        atexit.unregister(self._at_exit)
        if self._watching is not None:
            self._watching.remove()
            self._watching = None
        hook.close(reason)


def _left_behind(state: Any) -> dict[str, Any]:
    """What `on_step_end` of an earlier attempt left in the checkpoint's trainer_state.json; empty where nothing is."""
    left = (state.stateful_callbacks or {}).get(_KEY) if state.global_step else None
    if left is None:
        return {}
    counts = {name: left.get(name) for name in ("attempt", "consumed_samples", "consumed_tokens")}
    for name, count in counts.items():
        if count is not None and not isinstance(count, int):
            raise ValueError(f"{name} in trainer_state.json should be a whole number, not {count!r}")
    minima = [(seqlen, float(loss)) for seqlen, loss in left["loss_minimum"]]
    return {**counts, "loss_minimum": LossMinimum.load(minima)}
