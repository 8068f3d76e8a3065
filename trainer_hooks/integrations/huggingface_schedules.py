"""Schedules under Hugging Face's Trainer. The learning rate: what its scheduler makes of it as a formula, and a decided
one. Sequence length warmup: batches are cut where Trainer counts a step's labels, before that count, so that the loss
stays the mean over the tokens that are trained on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule
from trainer_hooks.errors import Guard
from trainer_hooks.learning_rate import DecidedLr, formula_of
from trainer_hooks.warmup.batch import changed
from trainer_hooks.warmup.pacing import Following, followed


def schedule_of(trainer: Any, engine: Any, total_steps: int) -> LrSchedule | None:
    """Trainer's own schedule, or DeepSpeed's, as a formula: constant, linear or cosine, with a linear warmup and a
    minimum or without. None for any other. It is held against the scheduler at some 70 steps."""
    if total_steps < 1:
        return None
    if engine.lr_scheduler is not None:
        return _of_deepspeed(engine.lr_scheduler)
    scheduler = trainer.lr_scheduler
    if not (functions := getattr(scheduler, "lr_lambdas", None)):
        return None
    peak, warmup = float(scheduler.base_lrs[0]), int(trainer.args.get_warmup_steps(total_steps))
    # Trainer's first update is taken with the LR of step 0
    return formula_of(lambda step: peak * float(functions[0](step - 1)), peak, warmup, total_steps, first=1)


def why_no_schedule(trainer: Any, engine: Any) -> str:
    """Why `schedule_of` has found no formula, as a phrase that says what would give one."""
    if (own := engine.lr_scheduler) is None:
        name = getattr(trainer.args.lr_scheduler_type, "value", trainer.args.lr_scheduler_type)
        known = "linear, cosine and constant"
        return f"Trainer's schedule {name!r} can't be written as a formula: an LR rung works over {known}"
    name = type(own).__name__
    if getattr(own, "warmup_type", "linear") != "linear":
        cure = '"warmup_type": "linear" in its params'
        return f"DeepSpeed's {name} warms up along a logarithm: an LR rung needs {cure}"
    known = "WarmupLR, WarmupDecayLR and WarmupCosineLR that warm up from 0"
    return f"DeepSpeed's {name} can't be written as a formula: an LR rung works over {known}"


def _of_deepspeed(scheduler: Any) -> LrSchedule | None:
    """WarmupLR, WarmupDecayLR and WarmupCosineLR; their warmup along a logarithm, the default, is no such formula."""
    bases = getattr(scheduler, "max_lrs", None) or getattr(scheduler, "org_lrs", None)
    if not bases or not hasattr(scheduler, "warmup_num_steps"):
        return None
    twin = copy.copy(scheduler)

    def own(step: int) -> float:  # the first two updates are taken with the LR of step 0
        twin.last_batch_iteration = max(step - 2, 0)
        return float(twin.get_lr()[0])

    total = int(getattr(scheduler, "total_num_steps", 0)) or 2 * int(scheduler.warmup_num_steps)
    return formula_of(own, float(bases[0]), int(scheduler.warmup_num_steps), total, first=2)


class TrainersLr(DecidedLr):
    """Trainer logs it; DeepSpeed's scheduler has stepped once the update is made."""

    def __init__(self, trainer: Any, engine: Any, schedule: LrSchedule) -> None:
        super().__init__(engine.optimizer, schedule)
        self._trainer, self._engine = trainer, engine
        trainer._get_learning_rate = lambda: self.lr  # what Trainer logs

    def made(self) -> None:
        """After the update: Trainer's scheduler finds its own LR in the groups."""
        if self._engine.lr_scheduler is None:
            super().made()
        else:
            self.keep()

    def close(self) -> None:
        self._trainer.__dict__.pop("_get_learning_rate", None)


_PACKED = "the samples of a batch are packed into one sequence, without padding"


def why_not_shortened(trainer: Any, model: Any) -> str | None:
    """Why this trainer's batches can't be cut, as a phrase; None where they can."""
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "inputs and labels of an encoder-decoder model have lengths of their own"
    other = any(hasattr(config, name) for name in ("vision_config", "audio_config"))
    if other or getattr(model, "main_input_name", None) != "input_ids":
        return "its model has inputs besides tokens"
    collator = trainer.data_collator
    if getattr(collator, "padding_free", False) or type(collator).__name__ == "DataCollatorWithFlattening":
        return _PACKED
    if getattr(trainer.args, "parallelism_config", None) is not None:
        return "sequences are dealt over ranks"
    return None if hasattr(trainer, "_get_num_items_in_batch") else "this version of transformers is too old"


class Lengths:
    """The length of each step; the first so many tokens of each sample are trained on. Evaluations stay as they are."""

    def __init__(self, trainer: Any, guard: Guard, schedule: SeqlenSchedule, state: Mapping[str, Any] | None) -> None:
        self.schedule = schedule
        self._trainer, self._pacing = trainer, followed(schedule)
        self._following = self._pacing if isinstance(self._pacing, Following) else None
        if state is not None and self._following is not None:
            self._following.load(state)
        if schedule.warms_up:
            self._take_over(guard, trainer.get_batch_samples, trainer._get_num_items_in_batch)

    def _take_over(self, guard: Guard, draw: Callable[..., Any], count: Callable[..., Any]) -> None:
        trainer, drawing = self._trainer, False

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            nonlocal drawing
            drawing = True
            try:
                return draw(*args, **kwargs)
            finally:
                drawing = False

        def num_items_in_batch(batch_samples: list[Any], *args: Any, **kwargs: Any) -> Any:
            with guard("shorten the batches"):
                if drawing:  # an evaluation counts too
                    length = self.length(trainer.state.global_step + 1)
                    batch_samples[:] = [cut(batch, length) for batch in batch_samples]
            return count(batch_samples, *args, **kwargs)

        trainer.get_batch_samples, trainer._get_num_items_in_batch = get_batch_samples, num_items_in_batch

    def length(self, step: int) -> int:
        """Tokens per sample of the update that makes `step`."""
        return int(min(max(self._pacing.seqlen(step), 2), self.schedule.full))

    def validated(self, perplexity: float, step: int) -> None:
        if self._following is not None:
            self._following.validated(perplexity, step)

    def state(self) -> dict[str, Any] | None:
        return self._following.state() if self._following is not None else None

    def close(self) -> None:
        for name in ("get_batch_samples", "_get_num_items_in_batch"):
            self._trainer.__dict__.pop(name, None)


def cut(batch: Any, length: int) -> Any:
    """The batch with the first `length` of input_ids' T along each axis of T, the first axis, the samples', aside."""
    if any(name.startswith(("cu_seq", "max_length")) for name in batch):
        raise ValueError(_PACKED)
    full = batch["input_ids"].shape[1]

    def first(_: str, leaf: Tensor) -> Tensor:
        for axis in range(1, leaf.dim()):
            if leaf.shape[axis] == full:
                leaf = leaf.narrow(axis, 0, length)
        return leaf.contiguous()

    return changed(batch, first) if full > length else batch
