"""Which samples a step is made of, as one number: the sum over the samples of a 31-bit hash of each one's tokens. Their
order in the batch and the ranks that they lie on do not change it. Nothing waits for the device, nothing is copied to
it: the weights are made there."""

from __future__ import annotations

import torch
from torch import Tensor

_ODD = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # of SplitMix64 (Steele et al. 2014), signed

_LEAST, LONGEST = 1 << 13, 1 << 20
"""Positions of a table: 64 kB to 8 MB on each device. A longer sample's weights are made at each call, and not kept."""

_tables: dict[torch.device, Tensor] = {}
"""Of each device the weights of the first positions: the weights of a shorter sample are the beginning."""


def _made(length: int, device: torch.device) -> Tensor:
    """(length,) int64: another odd number for each position; int64 wraps around, on every device alike."""
    mixed = torch.arange(1, length + 1, dtype=torch.int64, device=device) * _ODD[0]
    for odd in _ODD[1:]:
        mixed = (mixed ^ (mixed >> 29)) * odd
    return mixed | 1


def _weights(length: int, device: torch.device) -> Tensor:
    if length > LONGEST:
        return _made(length, device)
    table = _tables.get(device)
    if table is None or len(table) < length:
        table = _tables[device] = _made(max(_LEAST, 1 << (length - 1).bit_length()), device)
    return table[:length]


def batch_digest(tokens: Tensor) -> Tensor:
    """() float64, of (B, T) whole numbers: exact, and so is its sum over up to four million samples."""
    rows = tokens.detach().reshape(len(tokens), -1)
    hashes = ((rows + 1) * _weights(rows.shape[1], rows.device)).sum(1)
    return ((hashes ^ (hashes >> 31)) & 0x7FFFFFFF).sum().double()
