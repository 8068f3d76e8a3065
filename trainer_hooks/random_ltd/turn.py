"""Where the training is: what the layers draw from. Moved on by RandomLtd.begin, read in every layer's forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer_hooks.random_ltd.data_rank import DataRank

__all__ = ["MicroBatchCount", "Turn"]


@dataclass(slots=True, kw_only=True)
class Turn:
    """One step, and where the loop says so one micro-batch of it."""

    seed: int
    data_rank: DataRank
    step: int = 0
    """Number of the update that is being made, the first is 1; 0 before any `begin`."""

    kept: int | None = None
    """Tokens that a dropping layer keeps of each sample; None before any `begin`: all."""

    micro_batch: int | None = None
    """Its number within the step, from 0; None where each layer counts."""


class MicroBatchCount:
    """Counts one layer's micro-batches in a step, for a loop that can't say: a pipeline makes them out of our sight.

    A recomputation (activation checkpointing, in the backward pass) belongs to the earliest micro-batch that has not
    been recomputed: backward passes come in the order of the forward ones, in a plain loop and in DeepSpeed's 1F1B.
    """

    def __init__(self) -> None:
        self._step = self._forwards = self._recomputed = 0

    def next(self, step: int) -> int:
        """The number, from 0, of the micro-batch that the layer is called for now."""
        if step != self._step:
            self._step, self._forwards, self._recomputed = step, 0, 0
        if in_backward():
            self._recomputed += 1
            return self._recomputed - 1
        self._forwards += 1
        return self._forwards - 1


def in_backward() -> bool:
    """Whether autograd is running in this thread; torch.utils.checkpoint asks the same way."""
    return bool(torch._C._current_graph_task_id() != -1)  # type: ignore[attr-defined,unused-ignore]
