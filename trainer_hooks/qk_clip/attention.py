"""Which rows of which weights make the queries, keys and values of an attention layer's heads. H heads of queries, G of
keys (each serves H / G heads of queries in a row), D wide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Attention", "Rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The outputs of one weight or bias, one number each: h of head h's queries, H + g of head g's keys, H + G of any
    head's values."""

    parameter: nn.Parameter
    index: Tensor  # (outputs,) int64
    axis: int = 0  # Of the weight's outputs: 0 of nn.Linear, 1 of Hugging Face's Conv1D


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One layer. Fused or not, one size of head: queries and keys as wide as the values."""

    heads: int
    key_heads: int
    rows: tuple[Rows, ...]

    @classmethod
    def fused(cls, qkv: Any, heads: int, *, by_head: bool = False, axis: int = 0) -> Attention:
        """One projection (weight, and bias or None) for all three, as many heads of keys as of queries. Its outputs are
        (3, H, D), or with `by_head` (H, 3, D), as GPT-NeoX and Megatron have them."""
        width = shape_of(qkv.weight)[axis] // (3 * heads)
        head = torch.arange(heads)
        numbers = torch.stack([head, heads + head, torch.full_like(head, 2 * heads)])  # (3, H)
        index = (numbers.T if by_head else numbers).reshape(-1).repeat_interleave(width)
        return cls(heads=heads, key_heads=heads, rows=tuple(_rows(qkv, index, axis)))

    @classmethod
    def separate(cls, q: Any, k: Any, v: Any, *, width: int) -> Attention:
        """A projection each, head after head; `width` is D. Fewer heads of keys than of queries are grouped."""
        heads, key_heads = (shape_of(one.weight)[0] // width for one in (q, k))
        own = torch.arange(heads + key_heads).repeat_interleave(width)
        values = torch.full((shape_of(v.weight)[0],), heads + key_heads)
        indices = (own[: heads * width], own[heads * width :], values)
        rows = (r for one, index in zip((q, k, v), indices, strict=True) for r in _rows(one, index, 0))
        return cls(heads=heads, key_heads=key_heads, rows=tuple(rows))


def shape_of(parameter: Any) -> torch.Size:
    """Of the whole parameter, which ZeRO 3 has cut up."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _rows(projection: Any, index: Tensor, axis: int) -> Iterator[Rows]:
    yield Rows(parameter=projection.weight, index=index, axis=axis)
    if getattr(projection, "bias", None) is not None:
        yield Rows(parameter=projection.bias, index=index)
