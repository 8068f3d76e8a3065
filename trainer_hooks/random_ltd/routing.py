"""Gather a layer's kept tokens, and scatter its outputs back: in plain torch, or by DeepSpeed's CUDA op
(deepspeed.ops.random_ltd), which copies 16 bytes at a time, takes indices of 32 bits, and reads every dtype but float32
as 16-bit numbers. Other tensors go by plain torch."""

from __future__ import annotations

import logging
from itertools import product
from typing import Protocol

import torch
from torch import Tensor


class Routing(Protocol):
    """x is (B, T, …), or (T, B, …) where not batch_first; indices (B, r), ascending, are always by sample."""

    def gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """(what bypasses the layer, x's shape; the kept tokens, (B, r, …) or (r, B, …))."""

    def scatter(self, bypass: Tensor, kept: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        """The bypass with the kept tokens at their positions, in a tensor of its own; x's shape and dtype."""


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


log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_BYTES_AT_A_TIME = 16


class DeepSpeedOp:
    """DeepSpeed's GatherTokens and ScatterTokens. The op is compiled when it is first used: a minute or so."""

    def __init__(self) -> None:
        from deepspeed.ops.random_ltd.dropping_utils import GatherTokens, ScatterTokens

        self._gather, self._scatter = GatherTokens.apply, ScatterTokens.apply
        self._torch = PlainTorch()

    def gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        if not _suits(x):
            return self._torch.gather(x, indices, batch_first)
        bypass, kept = self._gather(x.contiguous(), indices.int(), batch_first)
        return bypass, kept

    def scatter(self, bypass: Tensor, kept: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        if not _suits(bypass):
            return self._torch.scatter(bypass, kept, indices, batch_first)
        kept = kept.to(bypass.dtype).contiguous()
        whole: Tensor = self._scatter(bypass, kept, indices.int(), batch_first)
        return whole


def fastest(device: torch.device) -> Routing:
    """DeepSpeed's op on a CUDA device where it loads and moves tokens as plain torch does; else plain torch."""
    if device.type != "cuda":
        return PlainTorch()
    try:
        op = DeepSpeedOp()
        right = moves_as_torch_does(op, device)
    except Exception as error:  # noqa: BLE001 - DeepSpeed, a compiler, a driver
        log.warning("random-LTD uses plain torch: DeepSpeed's op can't be used: %s", error)
        return PlainTorch()
    if not right:
        log.warning("random-LTD uses plain torch: DeepSpeed's op does not move the tokens correctly")
    return op if right else PlainTorch()


def moves_as_torch_does(routing: Routing, device: torch.device) -> bool:
    """Whether outputs and gradients are the same to the bit, on a small example in each layout and dtype."""
    reference = PlainTorch()
    return all(
        torch.equal(ours, theirs)
        for case in product(_DTYPES, (True, False))
        for ours, theirs in zip(_example(routing, *case, device), _example(reference, *case, device), strict=True)
    )


def _example(routing: Routing, dtype: torch.dtype, batch_first: bool, device: torch.device) -> list[Tensor]:
    """[output, gradient of the input], (3, 7, 16) or (7, 3, 16)."""
    indices = torch.tensor([[0, 2, 5, 6], [1, 2, 3, 4], [0, 1, 4, 5]], device=device)
    shape = (3, 7, 16) if batch_first else (7, 3, 16)
    numbers = torch.arange(3 * 7 * 16, device=device)
    x = (numbers % 61 - 30).to(dtype).view(shape).requires_grad_()
    with torch.enable_grad():
        bypass, kept = routing.gather(x, indices, batch_first)
        out = routing.scatter(bypass, kept * kept, indices, batch_first)
        (gradient,) = torch.autograd.grad(out, x, (numbers % 7).to(dtype).view(shape))
    return [out.detach(), gradient]


def _suits(x: Tensor) -> bool:
    return x.dtype in _DTYPES and x.ndim == 3 and x.shape[2] * x.element_size() % _BYTES_AT_A_TIME == 0
