"""Norms of the gradients on one rank: of its own before the average, and of its part of the averaged one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from trainer_hooks.sample.owners import local


class LocalGradient:
    """The norm of one rank's gradient before the ranks' average: a sick GPU, or sick data, shows there first.

    DeepSpeed averages gradients while it makes them, so the norm is taken where each parameter's gradient comes out of
    the backward pass: a call and a read per parameter, so at an interval only. Measures from `listen` to `taken`.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self.handles: list[Any] = []
        self._squares: Tensor | None = None

    def listen(self) -> None:
        """From the next backward pass on."""
        if not self.handles:
            self.handles = [p.register_hook(self._add) for p in self._parameters]  # type: ignore[no-untyped-call]

    def taken(self, scale: Tensor | float, micro_batches: int) -> Tensor | None:
        """Stops listening. () float64: root mean square over the micro-batches of the gradient's L2 norm. `scale` is
        what the losses were multiplied with before they were differentiated (loss scale / accumulation). nan or inf
        where a gradient is. None where no gradient came by."""
        squares, self._squares = self._squares, None
        self.stop()
        if squares is None or not micro_batches:
            return None
        return torch.sqrt(squares) / math.sqrt(micro_batches) / scale

    def stop(self) -> None:
        """No gradient is measured any more."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _add(self, gradient: Tensor) -> None:
        # In float64 beyond the tensor: a half-precision gradient's squares leave its range.
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).double()
        squares = norm * norm
        self._squares = squares if self._squares is None else self._squares + squares


def sum_of_squares(parameters: Iterable[Parameter], share: Callable[[Parameter], float]) -> Tensor | None:
    """() float64, on the gradients' device: each element counted once over all ranks; None without any gradient. A norm
    in half precision is inf above 65,504: the norms are taken in float32, the squares in float64."""
    shares: dict[float, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            shares.setdefault(share(parameter), []).append(local(parameter.grad).detach())
    with torch.no_grad():
        squares = [
            of_each * torch.stack(_norms(gradients)).double().square().sum() for of_each, gradients in shares.items()
        ]
    return torch.stack(squares).sum() if squares else None


def _norms(gradients: list[Tensor]) -> list[Tensor]:
    """Of each tensor its L2 norm, () float32 or float64."""
    by_width: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        width = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        by_width.setdefault(width, []).append(gradient)
    return [norm.double() for width, some in by_width.items() for norm in torch._foreach_norm(some, 2, dtype=width)]
