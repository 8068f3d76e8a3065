"""The validation loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer_hooks.gpt.data import Corpus


@torch.no_grad()
def validation_loss(engine: Any, corpus: Corpus, samples: int) -> float:
    """Mean loss at full length over the first validation samples, at most so many, nats; the same on any number of
    ranks. Called on every rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    indices = np.arange(min(samples, corpus.validation_samples))
    engine.eval()
    total = torch.zeros(2, dtype=torch.float64, device=engine.device)  # sum of losses, samples
    for part in np.array_split(indices[rank::world], max(1, len(indices) // 16)):
        if len(part):
            loss = engine.module(torch.from_numpy(corpus.validation(part)).to(engine.device))
            total += torch.tensor([loss.item() * len(part), len(part)], device=engine.device)
    engine.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])
