"""Tokens there and back by DeepSpeed's own CUDA op (deepspeed.ops.random_ltd), where it can be built and is right.

From its source: it copies 16 bytes at a time, takes indices of 32 bits, and reads whatever is not float as 16-bit
numbers. What it can't take goes by plain torch.
"""

from __future__ import annotations

import logging

import torch
from deepspeed.ops.random_ltd.dropping_utils import GatherTokens, ScatterTokens
from torch import Tensor

from trainer_hooks.random_ltd.routing import PlainTorch, Routing

__all__ = ["DeepSpeedOp", "fastest"]

log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_BYTES_AT_A_TIME = 16


class DeepSpeedOp:
    """DeepSpeed's GatherTokens and ScatterTokens. The op is compiled when it is first used: a minute or so."""

    def __init__(self) -> None:
        self._torch = PlainTorch()

    def gather(self, x: Tensor, indices: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        if not _suits(x):
            return self._torch.gather(x, indices, batch_first)
        bypass, kept = GatherTokens.apply(x.contiguous(), indices.int(), batch_first)
        return bypass, kept

    def scatter(self, bypass: Tensor, kept: Tensor, indices: Tensor, batch_first: bool) -> Tensor:
        if not _suits(bypass):
            return self._torch.scatter(bypass, kept, indices, batch_first)
        kept = kept.to(bypass.dtype).contiguous()
        whole: Tensor = ScatterTokens.apply(bypass, kept, indices.int(), batch_first)
        return whole


def fastest(device: torch.device) -> Routing:
    """DeepSpeed's op on a CUDA device where it loads and moves tokens as plain torch does; else plain torch."""
    if device.type != "cuda":
        return PlainTorch()
    try:
        right = moves_as_torch_does(DeepSpeedOp(), device)
    except Exception as error:  # noqa: BLE001 - a compiler, a driver: whatever keeps the op away
        log.warning("random-LTD goes by plain torch: DeepSpeed's op can't be used: %s", error)
        return PlainTorch()
    if not right:
        log.warning("random-LTD goes by plain torch: DeepSpeed's op does not move the tokens as it should")
    return DeepSpeedOp() if right else PlainTorch()


def moves_as_torch_does(routing: Routing, device: torch.device) -> bool:
    """Whether outputs and gradients are the same to the bit, on a small example in each layout and dtype."""
    reference = PlainTorch()
    cases = [(dtype, batch_first) for dtype in _DTYPES for batch_first in (True, False)]
    return all(
        torch.equal(ours, theirs)
        for dtype, batch_first in cases
        for ours, theirs in zip(
            _example(routing, dtype, batch_first, device),
            _example(reference, dtype, batch_first, device),
            strict=True,
        )
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
