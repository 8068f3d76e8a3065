"""The norm of one rank's gradient before it is averaged with the others': a sick GPU, or sick data, shows there first.

DeepSpeed averages gradients while it still makes them, so the norm is taken where each parameter's gradient comes out
of the backward pass. That costs a call and one read per parameter, and so it is done at an interval only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

__all__ = ["LocalGradient"]


class LocalGradient:
    """Listens to the gradients of one step's micro-batches, from `listen` to `taken`."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._handles: list[Any] = []
        self._squares: Tensor | None = None
        self.micro_batches = 0

    def listen(self) -> None:
        """From the next backward pass on."""
        if not self._handles:
            self._handles = [p.register_hook(self._add) for p in self._parameters]  # type: ignore[no-untyped-call]

    @property
    def listening(self) -> bool:
        return bool(self._handles)

    def taken(self, scale: Tensor | float, micro_batches: int) -> Tensor | None:
        """Stops listening. () float64: root mean square over the micro-batches of the gradient's L2 norm. `scale` is
        what the losses were multiplied with before they were differentiated (loss scale / accumulation). nan or inf
        where a gradient is. None where nothing was heard: this engine's gradients do not come by."""
        squares, self._squares = self._squares, None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if squares is None or not micro_batches:
            return None
        return torch.sqrt(squares) / math.sqrt(micro_batches) / scale

    def _add(self, gradient: Tensor) -> None:
        # In float64 beyond the tensor: a half-precision gradient's squares leave its range.
        norm = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).double()
        squares = norm * norm
        self._squares = squares if self._squares is None else self._squares + squares
