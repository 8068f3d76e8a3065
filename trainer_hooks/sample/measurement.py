"""The readings of one rank's step, on their way from the device to the host; the host never waits for the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer_hooks.sample.adam_state import OwnedPiece
from trainer_hooks.sample.reading import RankReading


class LayerRows(NamedTuple):
    """One rank's part of each layer's variance, in the order of the layers."""

    # To be added: of each layer the sum of sqrt(v); then of each whether a v is nan (1) or none is (0).
    sums: list[float]
    tops: list[float]  # Of which the largest is taken: of each layer max of v; -inf where this rank has none of it


@dataclass(slots=True, kw_only=True)
class Measurement:
    """The readings of one rank's step: some small float64 tensors. On a CPU they are ready at once; from CUDA they are
    copied into pinned memory behind the step's own work, and are ready after that: at the next step, as a rule."""

    global_step: int
    scalars: dict[str, Tensor]  # {field of RankReading: () number}, of what was read
    rows: list[Tensor]  # of each pass (2, S), or (5, S) with the moments
    with_moments: bool
    with_state: bool
    pieces: list[OwnedPiece]  # those of the rows' columns
    shares: Tensor  # (S,) float64 on the CPU: what each piece's elements count
    on_host: list[Tensor] = field(init=False)  # The scalars, then the rows
    copied: list[torch.cuda.Event] = field(init=False)  # Of each CUDA device: its copies are made

    def __post_init__(self) -> None:
        tensors = [*(t.double() for t in self.scalars.values()), *self.rows]
        self.on_host = [_begun_to_copy(tensor) if tensor.is_cuda else tensor for tensor in tensors]
        self.copied = []
        for device in {t.device for t in tensors if t.is_cuda}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self.copied.append(event)

    def ready(self) -> bool:
        """Whether all of it is on the host; never waits."""
        return all(event.query() for event in self.copied)  # type: ignore[no-untyped-call]

    def rank_reading(self) -> RankReading:
        """The reading, once it is ready."""
        read, rows = self._on_the_host()
        if self.with_moments:
            names = ("momentum_squares", "update_squares", "parameter_squares")
            read |= {name: float(self.shares @ rows[i]) for i, name in enumerate(names, 2)}
            read["elements"] = sum(h.share * h.piece.exp_avg_sq.numel() for h in self.pieces if h.layer is not None)
        if self.with_state:
            read["variance_l1"] = float(self.shares @ rows[0])
        if self.pieces:
            read["variance_top"] = float(rows[1].max())
        return RankReading(global_step=self.global_step, **read)

    def layer_rows(self, layers: list[str]) -> LayerRows:
        """This rank's part of each of the layers, once it is ready."""
        _, rows = self._on_the_host()
        position = {layer: i for i, layer in enumerate(layers)}
        l1, top, nans = [0.0] * len(layers), [-math.inf] * len(layers), [0.0] * len(layers)
        for owned, total, largest in zip(self.pieces, rows[0].tolist(), rows[1].tolist(), strict=True):
            at = position.get(owned.layer) if owned.layer is not None else None
            if at is not None:
                l1[at] += owned.share * total
                top[at] = max(top[at], largest)
                nans[at] = max(nans[at], float(math.isnan(largest)))
        return LayerRows(sums=l1 + nans, tops=top)

    def _on_the_host(self) -> tuple[dict[str, Any], Tensor]:
        scalars = {name: float(t) for name, t in zip(self.scalars, self.on_host, strict=False)}
        rows = self.on_host[len(self.scalars) :]
        return scalars, torch.cat(rows, dim=1) if rows else torch.zeros(5, 0, dtype=torch.float64)


def _begun_to_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
