"""A training in plain torch with the hook, without DeepSpeed: of a small GPT, by one rank or by several."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from sentinel.vocabulary.sample import Sample
from trainer_hooks import attach
from trainer_hooks.gpt.model import GPT, Shape

from .watched import logits_to

__all__ = ["VOCABULARY", "PlainTraining", "small_gpt"]

VOCABULARY = 256
_LENGTHS = range(17, 65)
"""Of the micro-batches, tokens: each step has another, as with dynamic padding."""


def small_gpt() -> GPT:
    """The same numbers on every rank."""
    torch.manual_seed(0)
    return GPT(Shape(layers=2, width=64, heads=4, seqlen=max(_LENGTHS)), VOCABULARY)


def tokens_of(step: int, rank: int, device: str) -> Tensor:
    """(4, T): another length at each step, other tokens on each rank."""
    length = _LENGTHS[7 * step % len(_LENGTHS)]
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(VOCABULARY, (4, length), generator=numbers).to(device)


class PlainTraining:
    """A loop that averages the gradients over the ranks itself."""

    def __init__(self, device: str, *, interval_steps: int = 2) -> None:
        self.device = device
        self.samples: list[Sample] = []
        self.made = 0  # steps
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.model = small_gpt().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.hook = attach(
            model=self.model,
            optimizer=self.optimizer,
            state_dir=tempfile.mkdtemp(),
            interval_steps=interval_steps,
            on_sample=self.samples.append,
        )
        self.model.report_logits_to(logits_to(self.hook))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hook.close("finished")

    def _average_gradients(self) -> None:
        if self.world > 1:
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            parts = (flat / self.world).split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def steps(self, count: int, *, update: bool = True, each: Callable[[float], None] = lambda _: None) -> None:
        """Trains on, without `update` by steps that change nothing; `each` gets the rank's own loss after each step,
        which it fetches from the device."""
        for _ in range(count):
            self.made += 1
            tokens = tokens_of(self.made, self.rank, self.device)
            self.hook.batch_seen(tokens)
            loss = self.model(tokens)
            self.hook.loss(loss)
            loss.backward()
            self._average_gradients()
            self.hook.gradients_whole()
            (group,) = self.optimizer.param_groups
            parameters = group["params"]
            group["params"] = parameters if update else []
            self.optimizer.step()
            group["params"] = parameters
            self.optimizer.zero_grad()
            each(float(loss.detach()))
