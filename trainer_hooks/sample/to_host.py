"""Numbers of a device on their way to the host: copied behind the work that makes them, and never waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_device(number: Any) -> bool:
    """Whether the host would wait for this number: a tensor that does not lie in the host's memory."""
    return isinstance(number, Tensor) and number.is_cuda


class Copies:
    """Small tensors, float64. On a CPU they are ready at once; from CUDA they are copied into pinned memory.

    `ready` may be asked on another thread: it reads the host's memory and makes no call to CUDA, which could wait for
    the driver's lock while it holds Python's, and has no place in another thread while a graph is captured."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.on_host = [_begun_to_copy(tensor) if on_device(tensor) else tensor for tensor in tensors]
        devices = {t.device for t in tensors if on_device(t)}
        # Of each CUDA device 1 once its copies are made: copied last, on the same stream.
        self._copied = [_begun_to_copy(torch.ones(1, dtype=torch.float64, device=device)) for device in devices]

    def ready(self) -> bool:
        """Whether all of them are on the host; never waits."""
        return all(bool(mark) for mark in self._copied)


def _begun_to_copy(tensor: Tensor) -> Tensor:
    host = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=True)  # memory that was used before may hold a 1
    return host.copy_(tensor, non_blocking=True)


class NewestNumber:
    """The newest value of a number that has reached the host: of a device's number an older one, a step's as a rule."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._coming: Copies | None = None

    def seen(self, number: Any) -> None:
        """The number as it is now; a later change of the tensor does not count."""
        self.arrived()
        if not on_device(number):
            self.value, self._coming = float(number), None
        elif self._coming is None:
            self._coming = Copies([number.detach().double().clone()])

    def arrived(self) -> float | None:
        """The value that has reached the host; None where none has so far."""
        if self._coming is not None and self._coming.ready():
            self.value, self._coming = float(self._coming.on_host[0]), None
        return self.value
