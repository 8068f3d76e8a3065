"""Sequence length warmup in any training loop: two calls a step.

warmup = SeqlenWarmup(schedule, engine=engine)
…
length = warmup.begin(step)          # before the batch is there: every pipeline stage knows it
loss = engine(warmup(batch))         # each micro-batch
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sentinel.vocabulary.errors import CheckpointError, ConfigError
from sentinel.vocabulary.pacing import shortening
from trainer_hooks.sample.own import has_own
from trainer_hooks.warmup.batch import Axes
from trainer_hooks.warmup.kept import Kept, Read, Run, Segment, Taken, packed
from trainer_hooks.warmup.pacing import Validated, followed
from trainer_hooks.warmup.shortening import POSITIONS, Shortening, levelling

log = logging.getLogger(__name__)


class Pacing(Protocol):
    """Any schedule. It may have `validated(perplexity, step)`, `state()` and `load(state)`: an adaptive one does."""

    def seqlen(self, step: int) -> int: ...


class SeqlenWarmup:
    """The length of each step, the batches at that length, and an exact count of the tokens."""

    def __init__(
        self,
        schedule: Pacing | Validated,
        shorten: str = "truncate",
        *,
        engine: Any = None,
        full: int | None = None,
        global_batch_samples: int | None = None,
        axes: Axes | None = None,
        positions: Iterable[str] = POSITIONS,
        shifts_inside: bool = False,
        kept_every: int = 4,
        level: bool = True,
    ) -> None:
        """shorten, with F targets of a sample at full length, L of this step and a batch of B: truncate keeps B of
        L, and drops the rest (`dropped_tokens`); reshape makes B * floor(F / L) of L and drops F mod L of each;
        truncate_keep and reshape_keep keep what is left over, and train on it at full length, each target exactly
        once.
        Batches: tensors, tuples, dicts, dataclasses, nested. Axes of F or F + 1 tokens are cut, also in masks (B, 1,
        T, T). A shape that is ambiguous stops the run. cu_seqlens is not understood; padded batches can be truncated
        only.
        engine: DeepSpeed's; gives the global batch. A PipelineEngine gets its batches and shapes from here.
        full: tokens per sample at full length; the schedule's own `full` by default.
        global_batch_samples: samples of a step, all ranks together, where there is no engine to ask.
        axes: {path or last name of a tensor: its sequence axes}, where its shape does not tell; () leaves it alone.
        positions: paths or last names of tensors of position ids, which a reshape counts anew.
        shifts_inside: the model predicts T - 1 of a row's T tokens, as Hugging Face's do; else T of T or T + 1.
        kept_every: once the length is full, one of so many samples is packed of what was kept; 1 is kept ones first.
        level: before kept tokens are used, one step is cut a little so that they make whole samples.
        """
        whole = full if full is not None else getattr(schedule, "full", None)
        if not isinstance(whole, int) or whole <= int(shifts_inside) or kept_every < 1:
            raise ConfigError(f"say the full sequence length in tokens, not {whole!r}; kept_every is 1 or more")
        self.schedule: Pacing = followed(schedule)
        self.full = whole
        self.length = whole  # Tokens per sample of the step that was begun
        self.step: int | None = None
        self.kept = Kept()
        self.kept_samples = 0
        """Of this step's global batch, how many samples are packed of kept tokens; they stand at its end."""
        self.consumed_tokens = 0  # Targets seen by the model, all data-parallel ranks together; padded ones count too
        self.dropped_tokens = 0  # Targets that were cut off for good
        self._shift = int(shifts_inside)  # a length of L tokens is one of L - shift targets
        self._shortening = Shortening(
            kind=shortening(shorten) or "truncate",
            full=whole - self._shift,
            axes=dict(axes or {}),
            positions=frozenset(positions),
        )
        self._engine, self._samples, self._every, self._level = engine, global_batch_samples, kept_every, level
        self._taken = Taken()
        self._fresh: int | None = None  # samples of the data order that are cut, until took()
        self._applied = self._validating = self._warned = False
        self._reset_shapes = _lead(engine, self)

    # -- a step

    def begin(self, step: int, samples: int | None = None) -> int:
        """Begins the update that makes `step`; returns its tokens per sample. On every rank, before its batch. samples:
        the global batch of this step, where it is not the engine's. A second call for a step changes nothing."""
        if step == self.step:
            return self.length
        if self.step is not None and step < self.step:
            raise ConfigError(f"step {step} begins after step {self.step}: load() the state of its checkpoint first")
        self._look_back()
        samples = self._samples if samples is None else samples
        if samples is None and self._engine is None:
            raise ConfigError("say how many samples a step has: engine, global_batch_samples, or begin(step, samples)")
        samples = int(self._engine.train_batch_size()) if samples is None else samples
        length = self._length(step, samples)
        if length != self.length:
            self._reset_shapes()
        self.step, self.length, self._applied = step, length, False
        self._count(samples, self._shortening.trained(length - self._shift))
        return length

    def __call__(self, batch: Any) -> Any:
        """The micro-batch at this step's length. Without gradients, or in validation(), it is left at full length."""
        if self._validating or not torch.is_grad_enabled():
            return batch
        self._applied = True
        return batch if self.length >= self.full else self._shortening.batch(batch, self.length - self._shift)

    @contextlib.contextmanager
    def validation(self) -> Iterator[None]:
        """Within it batches stay at full length, with gradients or without."""
        before, self._validating = self._validating, True
        self._reset_shapes()
        try:
            yield
        finally:
            self._validating = before
            self._reset_shapes()

    def validated(self, perplexity: float, step: int) -> None:
        """Tells a schedule that follows the validation what it was at full length, after update `step`."""
        tell = getattr(self.schedule, "validated", None)
        if tell is not None:
            tell(perplexity, step)

    # -- what is kept

    @property
    def cuts(self) -> bool:
        """Whether took() is to be called for this step."""
        return self._fresh is not None

    def took(self, runs: Iterable[tuple[int, int]]) -> None:
        """Which positions [first, after) of the data order this step's samples come from; where tokens are kept. The
        samples are all of the step's but the `kept_samples`. Where nothing is cut it may be left out."""
        if self._fresh is None:
            return
        runs = list(runs)
        count = sum(after - first for first, after in runs)
        if count != self._fresh:
            raise ConfigError(f"step {self.step} cuts {self._fresh} samples, and took() was given {count}")
        begin, end = self._shortening.trained(self.length - self._shift), self._shortening.full
        for first, after in runs:
            self.kept.add(Run(first, after, begin, end))
        self._fresh = None

    def segments(self, number: int) -> list[Segment]:
        """What this step's packed sample of that number, below `kept_samples`, consists of."""
        full = self._shortening.full
        return list(self._taken.segments(number * full, (number + 1) * full))

    def packed(self, numbers: Sequence[int], read: Read) -> Tensor:
        """(len(numbers), F + 1) tokens of those packed samples. read: positions -> (n, F + 1) tokens of the samples."""
        return torch.stack([packed(self.segments(n), read) for n in numbers]) if numbers else read([])

    # -- checkpoints

    def state(self) -> dict[str, Any]:
        """For the checkpoint, after a step; plain JSON, the same on all ranks."""
        self._look_back()
        schedule = getattr(self.schedule, "state", None)
        return {
            "step": self.step,
            "full": self.full,
            "consumed_tokens": self.consumed_tokens,
            "dropped_tokens": self.dropped_tokens,
            "kept": self.kept.state(),
            "schedule": schedule() if schedule is not None else None,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on from what state() gave. What was kept stays addressed by the same data order."""
        try:
            step, full, kept = state["step"], state["full"], Kept.of(state["kept"])
            consumed, dropped = int(state["consumed_tokens"]), int(state["dropped_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint's sequence length state can't be read: {error!r}") from error
        if kept.tokens and full != self.full:
            raise CheckpointError(f"{kept.tokens} tokens are kept of samples of {full}: they are none of {self.full}")
        self.step, self.length, self.kept, self.kept_samples = step, self.full, kept, 0
        self.consumed_tokens, self.dropped_tokens = consumed, dropped
        self._taken, self._fresh, self._applied = Taken(), None, True
        self._reset_shapes()
        restore = getattr(self.schedule, "load", None)
        if restore is not None and state.get("schedule") is not None:
            restore(state["schedule"])

    # -- inside

    def _length(self, step: int, samples: int) -> int:
        length = min(max(self.schedule.seqlen(step), 1 + self._shift), self.full)
        full, waiting = self._shortening.full, self.kept.tokens
        if length < self.full or not (self._shortening.keeps and self._level and waiting % full):
            return length
        return levelling(waiting % full, samples, full, self._shortening.kind) + self._shift

    def _count(self, samples: int, trained: int) -> None:
        keeps, full = self._shortening.keeps, self._shortening.full
        use = keeps and self.length == self.full
        self.kept_samples = min(max(1, samples // self._every), self.kept.tokens // full) if use else 0
        self._taken = self.kept.take(self.kept_samples * full)
        self.consumed_tokens += samples * trained
        self._fresh = samples if keeps and trained < full else None
        self.dropped_tokens += 0 if keeps else samples * (full - trained)

    def _look_back(self) -> None:
        """At the step before: was all done that it needs?"""
        if self._fresh is not None:
            raise ConfigError(f"what step {self.step} has cut off is not known: call took(…) after begin({self.step})")
        if self._applied or self._warned or self.step is None or self.length >= self.full:
            return
        if has_own(self._engine, "reset_activation_shape"):
            return  # a pipeline's stages in the middle see no batch
        self._warned = True
        log.warning("no batch of step %s was given to SeqlenWarmup: it has not shortened any", self.step)


def _lead(engine: Any, warmup: SeqlenWarmup) -> Callable[[], None]:
    """Makes a PipelineEngine shorten its training batches by the warmup, and validate at full length. Returns the
    function that resets the stages' activation shapes, to be called on all of them when the length changes: only the
    first and the last stage load a batch. Any other engine, or none, is left unchanged."""
    if not has_own(engine, "reset_activation_shape"):
        return lambda: None
    then = engine.batch_fn
    engine.set_batch_fn(warmup if then is None else lambda batch: warmup(then(batch)))
    evaluate = engine.eval_batch

    def eval_batch(*args: Any, **kwargs: Any) -> Any:
        with warmup.validation():
            return evaluate(*args, **kwargs)

    engine.eval_batch = eval_batch
    reset: Callable[[], None] = engine.reset_activation_shape
    return reset
