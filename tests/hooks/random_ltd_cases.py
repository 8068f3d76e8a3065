"""What the tests of random-LTD share: a schedule, a small GPT, and a stand-in for DeepSpeed's CUDA op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer_hooks.gpt.model import GPT, Block, Shape

__all__ = [
    "KEPT",
    "ROUTING",
    "SHAPE",
    "VOCABULARY",
    "Block",
    "Keeps",
    "Run",
    "StandInOp",
    "gradients",
    "run_blocks",
    "seen_lengths",
    "small_gpt",
    "tokens",
]

SHAPE = Shape(layers=4, width=16, heads=2, seqlen=24)
VOCABULARY = 32
KEPT = 7
ROUTING: dict[str, Any] = {
    "enabled": True,
    "total_layer_num": 4,
    "random_ltd_layer_num": 2,
    "random_ltd_layer_id": [1, 2],
    "model_mask_name": None,
    "model_type": "decoder",
    "hidden_state_order": "batch_seq_dim",
    "random_ltd_schedule": {
        "min_value": KEPT,
        "max_value": 24,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 1000, "seq_per_step": 1},
    },
}
"""DeepSpeed's configuration of random-LTD for this GPT."""


@dataclass(frozen=True)
class Keeps:
    """A schedule: linearly from `start` to `full` over `steps`; `steps` 0 keeps `start` for ever."""

    start: int
    full: int = 24
    steps: int = 0

    def kept_tokens(self, step: int) -> int:
        return self.start + (self.full - self.start) * min(step, self.steps) // max(self.steps, 1)


def small_gpt(**changes: Any) -> GPT:
    torch.manual_seed(0)
    shape = Shape(**{name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__} | changes)
    return GPT(shape, VOCABULARY)


def tokens(samples: int, number: int = 0, seqlen: int = SHAPE.seqlen) -> Tensor:
    """(samples, seqlen + 1)."""
    return torch.randint(VOCABULARY, (samples, seqlen + 1), generator=torch.Generator().manual_seed(number))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@contextmanager
def seen_lengths(model: GPT) -> Iterator[list[list[int]]]:
    """Of each block, the number of tokens that reached its inside, at each forward pass."""
    seen: list[list[int]] = [[] for _ in model.blocks]
    handles = [
        block.get_submodule("norm_1").register_forward_pre_hook(
            lambda _, inputs, into=into: into.append(inputs[0].shape[1])
        )
        for block, into in zip(model.blocks, seen, strict=True)
    ]
    yield seen
    for handle in handles:
        handle.remove()


Run = Callable[[nn.Module, Tensor], Tensor]
"""A block and its input -> its output: plainly, or by one of the checkpointings."""


def run_blocks(model: Any, batch: Tensor, run: Run) -> Tensor:
    """GPT.forward with its blocks run as they are told to be."""
    x = model.tokens(batch[:, :-1]) + model.positions(torch.arange(batch.shape[1] - 1))
    for block in model.blocks:
        x = run(block, x)
    logits = nn.functional.linear(model.norm(x), model.tokens.weight)
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class StandInOp:
    """DeepSpeed's random_ltd op in torch's operations, with what its CUDA source does: scatter writes in place."""

    def token_sort_(self, indices: Tensor, _seqlen: int) -> Tensor:
        return indices.sort(dim=-1).values

    def token_gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        return x[self._at(indices, batch_first)].clone()

    def token_scatter_(self, x: Tensor, part: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        x[self._at(indices, batch_first)] = part
        return x

    def _at(self, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        samples = torch.arange(indices.shape[0])
        return (samples[:, None], indices.long()) if batch_first else (indices.long().t(), samples)
