"""Sequence length warmup under Hugging Face's Trainer: batches are cut where Trainer counts a step's labels, before
that count, so that the loss stays the mean over the tokens that are trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from sentinel.vocabulary.pacing import SeqlenSchedule
from trainer_hooks.errors import Guard
from trainer_hooks.warmup.batch import changed
from trainer_hooks.warmup.pacing import Following, followed

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
        """Batches are left alone again."""
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
