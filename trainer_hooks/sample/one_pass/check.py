"""What a kernel must give before it is used: the answers of float64, on small data of every kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.chunked import Chunked
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece

_SIZES = (0, 1, 127, 128, 129, 0, 16385, 70000, 3, 500, 501, 502)
"""Elements of the pieces, which lie one behind the other: their starts are at odd places."""

_ODD = {128: math.nan, 256: 1e-39, 400: -math.nan, 16_900: math.inf, 87_100: 0.0, 87_600: -1e-9}
"""By place: what v may hold. All lie in pieces of their own."""

_CONSTANTS = (
    AdamConstants(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, step=3),
    AdamConstants(beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.1, step=1, decoupled=False),
    AdamConstants(beta1=0.8, beta2=0.99, eps=1e-8, step=7, bias_correction=False),
)


class NoKernel(RuntimeError):  # noqa: N818 - a reason, not a fault
    """This kernel can't be used here; its message says why."""


def check(make: Callable[[Sequence[Piece]], OnePass], device: torch.device, dtype: torch.dtype) -> None:
    """Compares the kernel with float64; NoKernel where they differ by more than 1e-6."""
    v, m, p = _state(dtype)
    odd = v.clone()
    for place, value in _ODD.items():
        odd[place] = value
    for name, state in (("numbers", (v, m, p)), ("zeros, denormals, inf and nan", (odd, m, p))):
        kernel = make(_pieces([tensor.to(device) for tensor in state]))
        exact = Chunked(_pieces([tensor.double() for tensor in state]))
        _compare(kernel.variance(), exact.variance(), f"{name} in v")
        _compare(kernel.moments(_CONSTANTS), exact.moments(_CONSTANTS), f"{name} in v, with m and the parameters")


def _state(dtype: torch.dtype) -> list[Tensor]:
    """v, m and parameters: a wide range of sizes, from a generator of its own (the training's is not to be moved)."""
    numbers = torch.Generator().manual_seed(0)
    n = sum(_SIZES) + 1
    v = torch.exp(8 * torch.randn(n, generator=numbers) - 20)
    m = torch.randn(n, generator=numbers) * v.sqrt()
    p = torch.randn(n, generator=numbers)
    v[::7], m[::7] = 0, 0
    return [tensor.to(dtype)[1:] for tensor in (v, m, p)]


def _pieces(state: Sequence[Tensor]) -> list[Piece]:
    """Some hold all of it, some v alone."""
    split = [torch.split(tensor, list(_SIZES)) for tensor in state]
    return [
        Piece(
            exp_avg_sq=v,
            exp_avg=None if number % 4 == 2 else m,
            parameter=None if number % 5 == 2 else p,
            group=number % len(_CONSTANTS),
        )
        for number, (v, m, p) in enumerate(zip(*split, strict=True))
    ]


def _compare(given: Tensor, exact: Tensor, of: str) -> None:
    if given.dtype != torch.float64 or given.shape != exact.shape:
        raise NoKernel(f"wrong answer for {of}: {given.dtype}, {tuple(given.shape)}")
    if not torch.allclose(given.cpu(), exact, rtol=1e-6, atol=1e-18, equal_nan=True):
        raise NoKernel(f"wrong answer for {of}: {given.cpu().tolist()} and not {exact.tolist()}")
