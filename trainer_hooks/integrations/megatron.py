"""The hook in Megatron-DeepSpeed: four lines of its training.py (docs/MEGATRON.md).

    sentinel = attach_to_megatron(model[0], args, mpu, get_num_microbatches)    # after deepspeed.initialize
    sentinel.started()                                                          # after load_checkpoint
    sentinel.evaluated(total_loss_dict)                                         # after evaluate
    sentinel.finished()                                                         # after train

Made for Microsoft's fork and BigScience's; nothing of theirs is imported: `args` is read by the names that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.vocabulary.loss_ratio import LossMinimum
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule
from sentinel.vocabulary.pacing.deepspeed import curriculum_learning
from trainer_hooks.attaching import attach
from trainer_hooks.hook import Hook
from trainer_hooks.sample.own import has_own
from trainer_hooks.sample.reading import Position

_KEY = "sentinel"  # where the hook's state lies in a checkpoint's client state, beside Megatron's args and iteration


class MegatronHook:
    """What `attach_to_megatron` returns. To be called on every rank."""

    def __init__(
        self, engine: Any, args: Any, mpu: Any, num_microbatches: Callable[[], int], **attach_options: Any
    ) -> None:
        """Attaches to the engine that deepspeed.initialize made of the model, before a checkpoint is loaded. Never
        raises. `args` is get_args(), `mpu` Megatron's module of groups (megatron.mpu, or megatron.core.mpu),
        `num_microbatches` its get_num_microbatches. The rest goes to `attach`: state_dir, run, address, port."""
        self._engine, self._args, self._mpu, self._num_microbatches = engine, args, mpu, num_microbatches
        self._parent_attempt: int | None = None
        self._evaluated_at: int | None = None
        self._saved: str | None = None
        self._evaluated: list[Any] = []
        """What eval_batch gave since the last evaluation, nats: a pipeline's first stage has the loss from it alone."""
        declared = {"applies": (), "trainer": "Megatron-DeepSpeed"}  # a decision reaches it by its job script alone
        self.hook: Hook = attach(engine, position=self._position, mpu=mpu, **{**declared, **attach_options})
        self._guard = self.hook.guard
        with self._guard("take its place around saving, loading and evaluating"):
            self._wrap()
        if getattr(args, "save", None):
            self.hook.saves_to(args.save)
        self.hook.close_at_exit()

    def started(self) -> None:
        """Reports what the attempt runs with; once args.iteration is what load_checkpoint gave."""
        schedules: dict[str, Any] = {}
        with self._guard("read the LR schedule"):
            schedules["lr_schedule"] = lr_schedule(self._engine.lr_scheduler, self._args)
        with self._guard("read the sequence length's schedule"):
            schedules["seqlen_schedule"] = seqlen_schedule(self._args)
        with self._guard("report the start"):
            args = self._args
            self.hook.run_started(
                parent_attempt=self._parent_attempt,
                resumed_from=args.iteration or None,
                seed=args.seed,
                first_sample_index=args.consumed_train_samples,
                consumed_tokens=args.consumed_train_tokens,
                lr=float(self._engine.optimizer.param_groups[0]["lr"]),
                full_seqlen=args.seq_length,
                **schedules,
                total_steps=args.train_iters,
                total_tokens=getattr(args, "train_tokens", None),
                checkpoint_interval_steps=args.save_interval,
                settings={k: v for k, v in vars(args).items() if isinstance(v, bool | int | float | str)},
            )

    def evaluated(self, losses: Mapping[str, Any]) -> None:
        """Reports the validation loss: evaluate's `lm loss`, or the mean of eval_batch's on this rank. Of several sets
        that are evaluated after one step the first counts."""
        with self._guard("report the validation"):
            losses_seen, self._evaluated = self._evaluated, []
            step, before = self._engine.global_steps, self._evaluated_at
            if step == before or not ("lm loss" in losses or losses_seen):
                return
            self._evaluated_at = step
            loss = losses["lm loss"] if "lm loss" in losses else sum(losses_seen) / len(losses_seen)
            self.hook.validation(float(loss), self._args.seq_length)

    def finished(self) -> None:
        """Reports that train() has returned: at its planned end, or earlier, as some versions do for a time limit."""
        reason, args = "finished", self._args
        with self._guard("tell the planned end"):
            made = (
                (self._engine.global_steps, args.train_iters, "steps"),
                (args.consumed_train_samples, getattr(args, "train_samples", None), "samples"),
                (args.consumed_train_tokens, getattr(args, "train_tokens", None), "tokens"),
            )
            planned = [(done, limit, unit) for done, limit, unit in made if limit]
            if planned and all(done < limit for done, limit, _ in planned):
                reason = "stopped: at " + ", ".join(f"{done} of {limit} {unit}" for done, limit, unit in planned)
        self.hook.close(reason)

    def _wrap(self) -> None:
        engine = self._engine
        save, load = engine.save_checkpoint, engine.load_checkpoint

        def hooked_save(save_dir: Any, tag: Any = None, client_state: Any = None, *more: Any, **named: Any) -> Any:
            with_ours = client_state = {} if client_state is None else client_state
            with self._guard("leave word for a restart"):
                left = {"attempt": self.hook.attempt, "loss_minimum": self.hook.loss_minimum.state()}
                with_ours = {**client_state, _KEY: left}
            result = save(save_dir, tag, with_ours, *more, **named)
            with self._guard("report the checkpoint"):
                saved, args = tag or f"global_step{engine.global_steps}", self._args
                if saved != self._saved:  # Megatron saves its last step twice, where the save interval meets it
                    self._saved, samples, tokens = saved, args.consumed_train_samples, args.consumed_train_tokens
                    self.hook.checkpoint_saved(saved, consumed_samples=samples, consumed_tokens=tokens)
            return result

        def hooked_load(*positional: Any, **named: Any) -> Any:
            result = load(*positional, **named)
            self._saved = self._evaluated_at = None  # what is trained from here on saves under the same names
            with self._guard("read what an earlier attempt left"):
                left = (result[1] or {}).get(_KEY)
                if left is not None:
                    self._parent_attempt = left["attempt"] or None
                    self.hook.loss_minimum = LossMinimum.load(left["loss_minimum"])
            return result

        engine.save_checkpoint, engine.load_checkpoint = hooked_save, hooked_load
        if not has_own(engine, "eval_batch"):
            return
        evaluate = engine.eval_batch

        def hooked_evaluate(*positional: Any, **named: Any) -> Any:
            result = evaluate(*positional, **named)
            with self._guard("take the validation's loss"):
                self._evaluated.append(result.detach())
            return result

        engine.eval_batch = hooked_evaluate

    def _position(self) -> Position:
        """For the hook: args are still those of before the step that was just made."""
        args = self._args
        batch = self._mpu.get_data_parallel_world_size() * args.micro_batch_size * self._num_microbatches()
        seqlen = _seqlen(args)
        tokens = None if seqlen is None else args.consumed_train_tokens + batch * seqlen
        return Position(
            consumed_samples=args.consumed_train_samples + batch,
            consumed_tokens=tokens,
            seqlen=seqlen,
            lr_warmup_steps=getattr(args, "lr_warmup_iters", None) or None,
            global_batch_samples=batch,
        )


attach_to_megatron = MegatronHook


def _seqlen(args: Any) -> int | None:
    """Tokens per sample in this step; None with random-LTD and a packing curriculum: there is no one length."""
    if getattr(args, "random_ltd", False) or hasattr(args, "data_efficiency_curriculum_learning_numel"):
        return None
    warming = ("curriculum_learning", "curriculum_learning_legacy", "data_efficiency_curriculum_learning")
    if any(getattr(args, name, False) for name in warming):
        return int(args.curriculum_seqlen)
    return int(args.seq_length)


def lr_schedule(scheduler: Any, args: Any) -> dict[str, Any] | None:
    """The LR by the scheduler's own numbers, after a checkpoint has set them or was overridden; in the unit of the
    options, from the run's beginning. None for a scheduler that is not Megatron's.

    Megatron's schedulers count samples, whatever the options count. A decay that is no cosine is left out.
    Source: AnnealingLR (BigScience), OptimizerParamScheduler (Microsoft, NVIDIA).
    """
    numbers = getattr(scheduler, "__dict__", {})
    if not {"max_lr", "min_lr"} <= set(numbers):
        return None
    prefix = "" if "warmup_steps" in numbers else "lr_"
    warmup, end, style, decay_tokens = (
        numbers[f"{prefix}{name}"] for name in ("warmup_steps", "decay_steps", "decay_style", "decay_tokens")
    )
    # The scheduler's own lr_warmup_tokens is also where a warmup in samples has ended.
    tokens = getattr(args, "lr_warmup_tokens", None) if prefix else None
    by_samples = getattr(args, "train_samples", None) is not None
    each = 1 if by_samples else args.global_batch_size
    length = round(warmup / each) if tokens is None else int(numbers["lr_warmup_tokens"])
    lr = LrSchedule(
        peak=numbers["max_lr"],
        minimum=min(numbers["min_lr"], numbers["max_lr"]),
        warmup=length,
        decay_end=0,
        unit="tokens" if tokens is not None else "samples" if by_samples else "steps",
    )
    if style == "cosine" and (decay_tokens is None) == (tokens is None):
        ends = round(end / each) if decay_tokens is None else int(decay_tokens)
        lr = replace(lr, decay_start=length, decay_end=ends)
    return lr.to_json()


def seqlen_schedule(args: Any) -> dict[str, Any] | None:
    """The sequence length's, from the JSON that the engine was made with: one that does not warm up where the JSON
    switches no warmup on. None where `data_efficiency` or random-LTD shortens samples, or the JSON is not known."""
    config = getattr(args, "deepspeed_config_dict", None) or getattr(args, "deepspeed_configuration", None)
    others = ("data_efficiency_curriculum_learning", "random_ltd")
    if not isinstance(config, Mapping) or any(getattr(args, name, False) for name in others):
        return None
    full = args.seq_length
    return (curriculum_learning(config) or FixedLinear(start=full, full=full, total_steps=0)).to_json()
