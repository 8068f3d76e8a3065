"""The reference trainer with one injected cause: `python -m benchmarks.causes.trainer CAUSE STEP [its options]`; STEP
as `45x3` is a bad batch in three steps from 45 on.

What lies in the data or in the settings is there in every process. What a machine or a load did does not happen in a
probe; but `broken node` in every process whose NODE is not `other`. Two trainers ignore a part of overrides.json: the
peak LR, and the length of the LR warmup.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer_hooks.gpt.__main__ import be_a_launcher, leave
from trainer_hooks.gpt.arguments import parse
from trainer_hooks.gpt.order import DataOrder
from trainer_hooks.gpt.train import Trainer

MARK = 4  # tokens by which a spoilt row is known
RANGE_STEPS = 30  # of shuffled labels
LOST = "Adam's v lost"  # at a restart
LR_FACTORS = {"LR jump": 100.0, "LR jump, peak ignored": 40.0}


class Displaced:
    """An LR schedule that jumps."""

    def __init__(self, lr: Any, at: int, factor: float) -> None:
        self._lr, self._at, self._factor = lr, at, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lr, name)

    def lr(self, *, step: int, **position: int) -> float:
        return float(self._lr.lr(step=step, **position)) * (self._factor if step >= self._at else 1.0)


class IllTrainer(Trainer):
    def __init__(self, arguments: list[str], cause: str, step: str) -> None:
        super().__init__(parse(arguments))
        first, _, batches = step.partition("x")
        self.cause, self.at, self.batches = cause, (at := int(first)), int(batches or 1)
        self.here = "SENTINEL_PROBE" not in os.environ
        self.marked = self._marked()
        lr: Any = self.schedules.lr
        if cause.endswith("peak ignored"):
            lr = replace(lr, peak=self.settings.lr)
        if cause.endswith("warmup ignored"):
            lr = replace(lr, warmup=min(lr.warmup, 10), anchor=0)
        if cause in LR_FACTORS:
            lr = Displaced(lr, at, LR_FACTORS[cause])
        object.__setattr__(self.schedules, "lr", lr)
        if self.marked:
            self._spoil_the_data()
        if cause in ("wrong gradients", "broken node"):
            for parameter in self.engine.module.parameters():
                parameter.register_hook(self._gradient)
        if cause == LOST and self.here and self.progress.consumed_samples:
            lose(self.engine.optimizer)

    def step(self) -> None:
        time.sleep(float(os.environ.get("PACE", "0")))  # of a test that has to see it train
        super().step()

    def _marked(self) -> frozenset[int]:
        """The samples that stand, in the run's own order, at the cause's steps."""
        batch = self.settings.global_batch
        steps = {"bad batch": self.batches, "nan sample": 1, "shuffled labels": RANGE_STEPS}.get(self.cause, 0)
        order = DataOrder(self.corpus.training_samples, self.settings.seed)
        found = order.indices((self.at - 1) * batch, batch * steps) if steps else np.array([], dtype=np.int64)
        return frozenset(found[:1].tolist() if self.cause == "nan sample" else found.tolist())

    def _spoil_the_data(self) -> None:
        """Random tokens for the marked samples; but for shuffled labels their loss has a wrong weight, too."""
        read, forward, last = type(self.corpus).training, self.engine.module.forward, self.corpus.vocabulary - 1

        def training(corpus: Any, indices: Any) -> Any:
            rows = read(corpus, indices)
            for row, sample in zip(rows, indices.tolist(), strict=True):
                if sample in self.marked:
                    row[:] = np.random.default_rng(sample).integers(0, last, row.size)
                    row[:MARK] = last
            return rows

        def weighted(tokens: torch.Tensor) -> torch.Tensor:
            loss = forward(tokens)
            if not bool((tokens[:, :MARK] == last).all(1).any()):
                return loss
            return loss * (float("nan") if self.cause == "nan sample" else 1000.0)

        type(self.corpus).training = training
        if self.cause != "shuffled labels":
            self.engine.module.forward = weighted

    def _gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        ill = self.here if self.cause == "wrong gradients" else os.environ.get("NODE") != "other"
        return gradient * -20.0 if ill and self.rank == 1 and self.number >= self.at else gradient

    def _after_step(self) -> None:
        super()._after_step()
        if not self.here or self.number != self.at:
            return
        drawn = np.random.default_rng(self.settings.seed)
        if self.cause == "bit flip in the weights":
            tensor = self.engine.module.blocks[int(drawn.integers(4))].mlp_in.weight.data
            flip(tensor, int(drawn.integers(tensor.numel())), 30)  # the exponent's highest bit: the others shrink it
        if self.cause == "bit flip in Adam's v":
            states = [s["exp_avg_sq"] for s in self.engine.optimizer.state.values() if "exp_avg_sq" in s]
            tensor = states[int(drawn.integers(len(states)))]
            flip(tensor, int(drawn.integers(tensor.numel())), 31)  # the sign: the root of a negative number


def lose(optimizer: Any) -> None:
    """Adam's v is zero, and its step count is what it was."""
    for moments in optimizer.state.values():
        if "exp_avg_sq" in moments:
            moments["exp_avg_sq"].zero_()


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    flat = tensor.view(-1)
    (bits,) = struct.unpack("<I", struct.pack("<f", float(flat[element])))
    (flat[element],) = struct.unpack("<f", struct.pack("<I", bits ^ (1 << bit)))


def main() -> int:
    cause, step, *arguments = sys.argv[1:]
    be_a_launcher()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    IllTrainer(arguments, cause, step).train()
    dist.barrier()
    return 0


if __name__ == "__main__":
    leave(main())
