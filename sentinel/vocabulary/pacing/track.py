"""Where a run's steps lead: samples and tokens, counted on from a position by the schedules alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing.data_efficiency import RandomLtdSchedule
from sentinel.vocabulary.pacing.lr_and_batch import BatchSizeSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule

# truncate: the first tokens of each sample, the rest is lost (seqtru). reshape: more, shorter samples of the same
# tokens (seqres), and what does not fill one is lost. *_keep: the same, and what would be lost is recorded and trained
# on later.
Shortening = Literal["truncate", "reshape", "truncate_keep", "reshape_keep"]


def shortening(told: object) -> Shortening | None:
    """What JSON named; None for none. ConfigError lists the right ones."""
    if told is None or told in get_args(Shortening):
        return cast("Shortening | None", told)
    raise ConfigError(f"batches are shortened by one of {', '.join(get_args(Shortening))}, not by {told!r}")


_MOST_STEPS = 5_000_000  # Steps counted one by one; more under a schedule that still changes is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    step: int = 0  # Completed optimizer steps
    samples: int = 0  # Samples consumed, over all ranks
    tokens: int = 0  # Tokens consumed, over all ranks

    def counted(self, unit: str) -> int:
        """The position in "steps", "samples" or "tokens"."""
        return {"steps": self.step, "samples": self.samples, "tokens": self.tokens}[unit]


def trained_tokens(length: int, *, full: int, shorten: Shortening | None) -> int:
    """Tokens of one sample of the data that a step at this length trains on: a reshape makes more samples of it."""
    return full // length * length if (shorten or "truncate").startswith("reshape") else length


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The batch (before the trainer rounds it down to whole micro-batches) and the sequence length of every step to
    come. Under random-LTD tokens are effective ones: averaged over the layers, less what is dropped."""

    full: int  # Tokens per sample at the full length
    batch: BatchSizeSchedule
    seqlen: SeqlenSchedule | None = None  # None is the full length at every step
    shorten: Shortening = "truncate"
    random_ltd: RandomLtdSchedule | None = None
    layers: int = 1  # Layers of the model; matters under random-LTD alone
    unforeseen: Literal["start", "full"] = "start"  # Counts for a length not known beforehand: a lower or upper bound

    def tokens_per_sample(self, step: int) -> int:
        """Tokens that the update that makes `step` trains on, of each sample of the data; random-LTD is left out."""
        return trained_tokens(self._length(step), full=self.full, shorten=self.shorten)

    def reach(self, at: Position, unit: str, limit: int) -> Position:
        """The first position from `at` on with so many steps, samples or tokens; `at` itself where it has them."""
        counted, parts = 0, self.layers
        steps, consumed, seen = at.step, at.samples, at.tokens * parts  # seen: tokens x layers, whole numbers
        while True:
            batch, each = self.batch.samples(consumed), self._layer_tokens(steps + 1)
            ways = {"steps": (limit - steps, 1), "samples": (limit - consumed, batch)}
            ways["tokens"] = (limit * parts - seen, batch * each)
            left, one = ways[unit]  # what is left until the limit, and what one step takes of it
            if left <= 0:
                return Position(step=steps, samples=consumed, tokens=seen // parts)
            times = 1
            if self._constant_after(steps, consumed):
                times = -(-left // one)
            elif (counted := counted + 1) > _MOST_STEPS:
                raise ConfigError(f"a schedule that still changes after {_MOST_STEPS} steps can't be counted")
            steps, consumed, seen = steps + times, consumed + times * batch, seen + times * batch * each

    def tokens_at(self, at: Position, unit: str, count: int) -> int:
        """Tokens consumed when exactly so many steps, samples (also within a step) or tokens are."""
        if unit == "tokens":
            return count
        end = self.reach(at, unit, count)
        beyond = end.samples - count if unit == "samples" else 0
        return end.tokens - beyond * self._layer_tokens(end.step) // self.layers

    def _length(self, step: int) -> int:
        if self.seqlen is None:
            return self.full
        return self.seqlen.foreseen(step) or (self.seqlen.start if self.unforeseen == "start" else self.full)

    def _layer_tokens(self, step: int) -> int:
        length, trained, ltd = self._length(step), self.tokens_per_sample(step), self.random_ltd
        if ltd is None or not ltd.drops:
            return trained * self.layers
        dropping = len(ltd.layers) if ltd.layers is not None else max(self.layers - 2, 0)
        return trained // length * (length * (self.layers - dropping) + ltd.kept_tokens(step, length) * dropping)

    def _constant_after(self, steps: int, samples: int) -> bool:
        if samples < self.batch.end_samples or (self.random_ltd is not None and steps + 1 < self.random_ltd.end_step):
            return False
        if self.seqlen is None or not self.seqlen.warms_up:
            return True
        end = self.seqlen.end_step
        if end is None:
            return self.seqlen.foreseen(steps + 1) is None
        return steps + 1 >= end
