"""The tokens that a layer keeps: a uniform random subset for each sample, a pure function of the sample's position. No
generator's state is read or changed: a resume needs nothing saved, a recomputation in the backward pass draws the same
tokens, and so does CUDA. A token's score is a number of SplitMix64's stream (Steele, Lea & Flood 2014, "Fast Splittable
Pseudorandom Number Generators"), seeded with the sample's key; the smallest scores are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer_hooks.splitmix import FIRST, GOLDEN, MASK, SECOND, mixed


def layer_key(seed: int, step: int, layer: int) -> int:
    """The key of one layer's draws in one step, 64 bits."""
    key = 0
    for part in (seed, step, layer):
        key = mixed((key + part * GOLDEN + GOLDEN) & MASK)
    return key


def kept_indices(key: int, first_sample: int, samples: int, seqlen: int, kept: int, device: torch.device) -> Tensor:
    """(samples, kept) int64, ascending in each row: the positions, out of seqlen, that stay in the layer.
    `first_sample` is the first row's number in the step's global batch; the rows after it are its successors. Nothing
    in it waits for the device."""
    numbers = torch.arange(first_sample + 1, first_sample + samples + 1, device=device)
    keys = _mixed_all(numbers * _signed(GOLDEN) + _signed(key))  # (samples,)
    tokens = torch.arange(1, seqlen + 1, device=device)
    scores = _mixed_all(keys[:, None] + tokens * _signed(GOLDEN))  # (samples, seqlen)
    smallest = torch.topk(scores, kept, dim=1, largest=False, sorted=False).indices
    return smallest.sort(dim=1).values


def _mixed_all(x: Tensor) -> Tensor:
    """`mixed` of each element: int64 wraps around as 64 bits without a sign do."""
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: torch's own shift copies the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
