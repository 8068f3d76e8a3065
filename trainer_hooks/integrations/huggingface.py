"""A callback for Hugging Face's Trainer. This module needs transformers; nothing else of the hooks does.

    trainer = Trainer(model=model, args=TrainingArguments(...), ...)
    trainer.add_callback(StabilityCallback(trainer, run="tr8"))
    trainer.train()

Trainer passes a callback neither the engine nor the batches: the callback keeps the trainer, whose `model_wrapped` is
the DeepSpeed engine that accelerate made, or else the model, for which AccelerateEngine stands; it counts samples and
tokens where the forward is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.overrides import Overrides
from trainer_hooks.attaching import attach
from trainer_hooks.control.start import agreed_start
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.export.outputs import state_folder
from trainer_hooks.hook import Hook
from trainer_hooks.integrations.accelerate_engine import AccelerateEngine, why_no_engine
from trainer_hooks.integrations.huggingface_applied import Applied, Progress
from trainer_hooks.integrations.huggingface_parked import ParkedTrainer
from trainer_hooks.ranks import ranks_of_world
from trainer_hooks.sample.reading import Position

_KEY = "sentinel"
"""The callback's state among the `stateful_callbacks` of trainer_state.json. Not by ExportableState: Trainer's next
save raises KeyError after a checkpoint without the callback, and restore_callback_states_from_checkpoint builds a
callback anew from JSON, which a trainer is not."""


class StabilityCallback(TrainerCallback):  # type: ignore[misc]  # transformers is no requirement of ours: Any to mypy
    """One sample per optimizer step to the metrics journal and to /metrics, word of starts, saves and evaluations; and
    what overrides.json decides is applied. Added to the trainer on every rank.

    Nothing that goes wrong in it reaches the training loop, with one exception: a start with a decided change that it
    does not know or can't apply ends with an OverridesError before the first step.
    """

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
        of a set that stays the same, `eval_wiki_loss`. `full_seqlen` is the length of the training samples and of that
        set, in tokens; None where that is not known. `applies` names the keys of overrides.json that the training
        script itself reads and applies, such as "free", beside those that the callback applies.
        """
        self.hook: Hook | None = None  # From the beginning of a training to its end
        self._guard = Guard()
        self._trainer = trainer
        self._validation_metric = validation_metric
        self._full_seqlen = full_seqlen
        self._by_script = tuple(applies)
        trainers_name = "Hugging Face's Trainer (StabilityCallback)"
        self._attach_options = {"trainer": trainers_name, **attach_options}
        self._engine: Any = None
        self._applied: Applied | None = None
        self._lr_warmup_steps: int | None = None
        self._watching: Any = None  # the handle of the engine's forward hook
        self._requests: StepRequests | None = None
        self._stopped: str | None = None  # Why all ranks were asked to stop
        self.park: ParkedTrainer | None = None  # Where the trainer can park: see `train_in_place`

    @property
    def errors(self) -> int:
        """Errors that were caught and kept from the training loop."""
        return self._guard.errors

    def on_train_begin(self, args: Any, state: Any, _control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """The engine is made and the checkpoint loaded: applies what was decided, attaches, and reports what the
        attempt runs with. OverridesError where a decided change can't be applied."""
        with self._guard("attach"):
            self._end("error: training began anew")  # Trainer does so with a smaller batch after an out-of-memory
        folder = state_folder(self._attach_options.get("state_dir"), self._attach_options.get("run", "run"))
        start = agreed_start(folder)
        decided, self._stopped = start.overrides, None
        parks = self.park.begin(folder, self._guard, start.overrides, state) if self.park is not None else None
        self._requests = StepRequests.of_training(folder, self._guard, start.levels, parks)
        with self._guard("attach") if decided is None else _refusing():
            if (why := why_no_engine(self._trainer)) is not None:
                raise TypeError(f"this training can't be measured: {why}")
            with_deepspeed = getattr(self._trainer, "is_deepspeed_enabled", False)
            self._engine = self._trainer.model_wrapped if with_deepspeed else AccelerateEngine(self._trainer)
            self._applied = self._apply(state, train_dataloader, decided)
        with self._guard("attach"):
            if self._applied is not None:
                self._begin(self._engine, args, state, self._applied)
        with self._guard("join the other ranks"):
            if self.hook is None:  # the calls that the other ranks' hooks make
                ranks_of_world().union(None)  # they learn that this rank measures nothing
                ranks_of_world().new_channel()  # of their signs of life: the numbers stay the same on all ranks

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Before a step's first micro-batch."""
        with self._guard("look before the step"):
            if self._applied is not None:
                self._applied.begin_step(state.global_step + 1)

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """After the update, before Trainer's scheduler steps."""
        with self._guard("give the scheduler its learning rate back"):
            if self._applied is not None:
                self._applied.update_made()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """After the update and before a save: leaves word for a restart in what becomes trainer_state.json; ends the
        training, on all ranks after the same step, where a person asks for it by the file KILL in the state folder, and
        saves where SAVE is written there."""
        with self._guard("leave word for a restart"):
            if self._applied is not None:
                progress = self._applied.progress
                if self.hook is not None:
                    progress.attempt = self.hook.attempt
                    progress.loss_minimum = tuple(self.hook.loss_minimum.state())
                self._applied.note(int(state.global_step))
                state.stateful_callbacks[_KEY] = progress.to_json()
        with self._guard("count what is fed"):
            if self._applied is not None:
                self._applied.step_made(int(state.global_step))
        if self._requests is not None:  # on every rank at every step, whatever has failed above: the others count on it
            due = self._requests.at_boundary()
            self._stopped = self._stopped or due.stop
            control.should_training_stop = control.should_training_stop or due.stop is not None
            control.should_save = control.should_save or due.save
            if due.park and due.stop is None and self.park is not None:
                self.park.wait(self._engine, control, self._end)

    def on_evaluate(
        self, _args: Any, state: Any, _control: Any, metrics: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Reports the validation loss, where evaluate() measured the metric that counts as it."""
        with self._guard("report the validation"):
            loss = (metrics or {}).get(self._validation_metric)
            if self.hook is not None and self._applied is not None and loss is not None:
                self.hook.validation(float(loss), self._full_seqlen)
                self._applied.validated(float(loss), int(state.global_step))

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reports the checkpoint: DeepSpeed's part is whole on every rank, other ranks may yet write an rng_state."""
        if self.hook is not None:
            self.hook.save_coming()  # without DeepSpeed no engine's save has called it
        with self._guard("report the checkpoint"):
            applied = self._applied
            if self.hook is not None and applied is not None and not args.save_only_model:  # weights alone: no resume
                samples, tokens = applied.consumed_samples(int(state.global_step)), applied.fed.tokens
                tag = f"checkpoint-{state.global_step}"
                self.hook.checkpoint_saved(tag, consumed_samples=samples, consumed_tokens=tokens)

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Reports the end of train(), planned or by a callback. An error ends the process: see `close_at_exit`."""
        with self._guard("report the end"):
            at, planned = int(state.global_step), int(state.max_steps)
            self._end("finished" if at >= planned else self._stopped or f"stopped: at step {at} of {planned}")

    def _apply(self, state: Any, loader: Any, decided: Overrides | None) -> Applied:
        progress = Progress()
        with self._guard("read what an earlier attempt left") if decided is None else _refusing():
            progress = Progress.of((state.stateful_callbacks or {}).get(_KEY) if state.global_step else None)
        return Applied(
            self._trainer,
            self._engine,
            loader,
            decided,
            progress,
            by_script=self._by_script,
            full_seqlen=self._full_seqlen,
            guard=self._guard,
        )

    def _begin(self, engine: Any, args: Any, state: Any, applied: Applied) -> None:
        self.hook = attach(
            engine,
            position=self._position,
            loss_minimum=LossMinimum.load(applied.progress.loss_minimum),
            applies=applied.applies,
            **self._attach_options,
        )
        if self.park is not None:
            self.park.follow(self.hook)
        self._lr_warmup_steps = None
        self._guard.outer = self.hook.guard  # counted in sentinel_hook_errors_total
        self.hook.saves_to(args.output_dir)
        self.hook.close_at_exit()
        with self._guard("count what is fed"):
            self._watching = engine.register_forward_pre_hook(self._forward, with_kwargs=True)
        with self._guard("report the start"):
            if applied.schedule is not None:
                self._lr_warmup_steps = applied.schedule.warmup if applied.schedule.unit == "steps" else None
            elif engine.lr_scheduler is None:  # else the schedule is DeepSpeed's own, and not of Trainer's arguments
                self._lr_warmup_steps = int(args.get_warmup_steps(state.max_steps)) or None
            by_steps = str(getattr(args.save_strategy, "value", args.save_strategy)) == "steps"
            self.hook.run_started(
                parent_attempt=applied.progress.attempt,
                resumed_from=int(state.global_step) or None,
                total_steps=int(state.max_steps),
                checkpoint_interval_steps=int(state.save_steps) if by_steps else None,
                settings=args.to_sanitized_dict(),
                can_park=self.park is not None,
                in_place=self.park is not None and self.park.in_place,
                **applied.facts(),
            )

    def _forward(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's forward pre-hook of the engine, which no compilation of the model takes in."""
        with self._guard("count what is fed"):
            model = self._engine.module
            if model.training and self._applied is not None:
                name = getattr(model, "main_input_name", "input_ids")
                batch = kwargs[name] if name in kwargs else args[0]  # (B, T)
                self._applied.fed.micro_batch(batch.shape[0], batch.shape[1])
                if self.hook is not None:
                    self.hook.batch_seen(batch)

    def _position(self) -> Position:
        """For the hook: where the step that was just made stands, which Trainer has not counted yet."""
        applied, step = self._applied, int(self._trainer.state.global_step) + 1
        if applied is None:
            return Position()
        return Position(
            consumed_samples=applied.consumed_samples(step),
            consumed_tokens=applied.fed.tokens,
            seqlen=applied.seqlen(step),
            lr_warmup_steps=self._lr_warmup_steps or None,
            global_batch_samples=applied.fed.step_samples or None,
        )

    def _end(self, reason: str) -> None:
        hook, self.hook, self._guard.outer = self.hook, None, None
        applied, self._applied = self._applied, None
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()
        with self._guard("leave the trainer as it was"):
            if applied is not None:
                applied.close()
            if isinstance(self._engine, AccelerateEngine):
                self._engine.close()
        if self._watching is not None:
            self._watching.remove()
            self._watching = None
        if hook is not None:
            hook.close(reason)


@contextmanager
def _refusing() -> Iterator[None]:
    """Whatever goes wrong where something is decided ends the start, as an OverridesError."""
    try:
        yield
    except OverridesError:
        raise
    except Exception as error:
        raise OverridesError(f"overrides.json can't be applied: {type(error).__name__}: {error}") from error
