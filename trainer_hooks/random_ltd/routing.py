"""Tokens into a layer and back: gather those that are kept, scatter what became of them among those that were not."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

__all__ = ["PlainTorch", "Routing"]


class Routing(Protocol):
    """x is (B, T, …), or (T, B, …) where not batch_first; indices (B, r), ascending, are always by sample."""

    def gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """(what bypasses the layer, x's shape; the kept tokens, (B, r, …) or (r, B, …))."""
        ...

    def scatter(self, bypass: Tensor, kept: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        """The bypass with the kept tokens at their positions, in a tensor of its own; x's shape and dtype."""
        ...


class PlainTorch:
    """By rows of x, on any device and of any dtype."""

    def gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        rows = _rows(indices, x, batch_first)
        return x, x.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *x.shape[2:])

    def scatter(self, bypass: Tensor, kept: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        rows = _rows(indices, bypass, batch_first)
        whole = bypass.flatten(0, 1).index_copy(0, rows.flatten(), kept.flatten(0, 1).to(bypass.dtype))
        return whole.view(bypass.shape)


def _rows(indices: Tensor, x: Tensor, batch_first: bool) -> Tensor:
    """Numbers of the kept tokens in x with its first two axes as one; (B, r), or (r, B) where not batch_first."""
    sample = torch.arange(indices.shape[0], device=indices.device)
    return indices + sample[:, None] * x.shape[1] if batch_first else indices.t() * x.shape[1] + sample
