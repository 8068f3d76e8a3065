"""A run's data side without a model: what each rank would train on, step by step, with restarts and rollbacks."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sentinel.vocabulary.training_settings import SkippedRange
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.seqlen_warmup import SeqlenWarmup


class Lengths:
    """A schedule that has these lengths from a step on, and is full before and after."""

    def __init__(self, lengths: list[int], full: int, anchor: int = 0) -> None:
        self.lengths, self.full, self.anchor = lengths, full, anchor

    def seqlen(self, step: int) -> int:
        at = step - self.anchor - 1
        return self.lengths[at] if 0 <= at < len(self.lengths) else self.full


@dataclass
class ShortenedRun:
    """Tokens are numbered through, so that a target says where it is from."""

    lengths: list[int]
    shorten: str
    full: int
    samples: int
    batch: int
    kept_every: int
    ranks: int = 1
    step: int = 0
    consumed: int = 0
    anchor: int = 0
    order: DataOrder = field(init=False)
    warmup: SeqlenWarmup = field(init=False)
    trained: Counter[int] = field(default_factory=Counter)
    begun: Counter[int] = field(default_factory=Counter)
    """Targets of the samples that the order gave."""

    def __post_init__(self) -> None:
        self.order = DataOrder(self.samples, seed=0)
        self.warmup = self.new_warmup()

    def new_warmup(self) -> SeqlenWarmup:
        schedule = Lengths(self.lengths, self.full, self.anchor)
        return SeqlenWarmup(schedule, self.shorten, global_batch_samples=self.batch, kept_every=self.kept_every)

    def rows(self, numbers: Any) -> Tensor:
        """(n, F + 1) tokens of samples by their numbers; neighbours share a token, as in a corpus."""
        return torch.as_tensor(numbers, dtype=torch.long)[:, None] * self.full + torch.arange(self.full + 1)

    def make_step(self) -> None:
        warmup, batch = self.warmup, self.batch
        self.step += 1
        warmup.begin(self.step)
        fresh = batch - warmup.kept_samples
        samples, after = self.order.take(self.consumed, fresh)
        warmup.took(self.order.runs(self.consumed, after))
        self.consumed = after
        self.begun.update(self.rows(samples)[:, 1:].flatten().tolist())
        for rank in range(self.ranks):
            for mine in np.arange(batch).reshape(-1, self.ranks, 2 if self.ranks < 4 else 1)[:, rank]:
                kept = (mine[mine >= fresh] - fresh).tolist()
                packed = warmup.packed(kept, lambda positions: self.rows(self.order.at(positions)))
                rows = torch.cat([self.rows(samples[mine[mine < fresh]]), packed])  # of a micro-batch
                self.trained.update(warmup(rows)[:, 1:].flatten().tolist())

    def checkpoint(self) -> dict[str, Any]:
        told = {
            "warmup": self.warmup.state(),
            "reseeds": self.order.reseeds,
            "skipped": [r.to_json() for r in self.order.skipped],
            "consumed": self.consumed,
            "step": self.step,
        }
        return json.loads(json.dumps(told)) | {"run": (self.trained.copy(), self.begun.copy())}

    def resume(
        self,
        saved: dict[str, Any],
        *,
        ranks: int,
        anchor: bool = False,
        seed: int | None = None,
        skipped: Sequence[SkippedRange] = (),
    ) -> None:
        """A new process on that many ranks; where asked, with the warmup begun anew there, and the rest reordered.

        skipped: what a rollback leaves out of the data, as the order was before it.
        """
        saved = copy.deepcopy(saved)
        self.step, self.consumed, self.ranks = saved["step"], saved["consumed"], ranks
        self.trained, self.begun = saved["run"]  # the weights are those of the checkpoint
        ledger = [SkippedRange.from_json(r) for r in saved["skipped"]]
        ledger += [r for r in skipped if r not in ledger]
        self.order = DataOrder(self.samples, 0, [tuple(r) for r in saved["reseeds"]], ledger)
        if anchor:
            self.anchor = self.step
        if seed is not None:
            self.order.reseed(self.consumed, seed)
        self.warmup = self.new_warmup()
        self.warmup.load(saved["warmup"])

    @property
    def kept(self) -> Counter[int]:
        """Targets that wait."""
        state = self.warmup.kept.state()
        waiting = []
        for first, after, begin, end in state["runs"]:
            for number in self.order.at(range(first, after)).tolist():
                waiting += [number * self.full + 1 + target for target in range(begin, end)]
        return Counter(waiting[state["used"] :])
