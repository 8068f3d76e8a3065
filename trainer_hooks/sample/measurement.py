"""Readings on their way from the device to the host, without the host ever waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Readout"]


class Readout:
    """Some small float64 tensors of one step. On a CPU they are there at once; from CUDA they are copied into pinned
    memory behind the step's own work, and read when the copy is through: at the next step, as a rule."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._host: list[Tensor] = []
        self._events: list[torch.cuda.Event] = []
        for tensor in tensors:
            if not tensor.is_cuda:
                self._host.append(tensor)
                continue
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            self._host.append(host)
        for device in {t.device for t in tensors if t.is_cuda}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._events.append(event)

    def ready(self) -> bool:
        """Whether all of them are on the host; never waits."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def tensors(self) -> list[Tensor]:
        """The tensors, on the host; to be asked once they are ready."""
        return self._host
