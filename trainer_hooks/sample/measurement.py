"""The readings of one rank's step, on their way from the device to the host; the host never waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer_hooks.sample.adam_state import OwnedPiece
from trainer_hooks.sample.reading import RankReading


class LayerRows(NamedTuple):
    """One rank's part of each layer's variance, in the order of the layers."""

    sums: list[float]
    """To be added: of each layer the sum of sqrt(v); then of each whether a v is nan (1) or none is (0)."""
    tops: list[float]
    """Of which the largest is taken: of each layer max of v; -inf where this rank has none of it."""


class Measurement:
    """The readings of one rank's step, on their way to the host."""

    def __init__(
        self,
        *,
        global_step: int,
        scalars: dict[str, Tensor],
        rows: list[Tensor],
        with_moments: bool,
        with_state: bool,
        pieces: list[OwnedPiece],
        shares: Tensor,
    ) -> None:
        self._global_step = global_step
        self._names = list(scalars)
        self._readout = Readout([*(t.double() for t in scalars.values()), *rows])
        self._with_moments = with_moments
        self._with_state = with_state
        self._pieces = pieces
        self._shares = shares

    def ready(self) -> bool:
        """Whether all of it is on the host; never waits."""
        return self._readout.ready()

    def rank_reading(self) -> RankReading:
        """The reading, once it is ready."""
        scalars, rows = self._on_the_host()
        moments: dict[str, Any] = {}
        shares = self._shares
        if self._with_moments:
            names = ("momentum_squares", "update_squares", "parameter_squares")
            moments = {name: float(shares @ rows[i]) for i, name in enumerate(names, 2)}
            moments["elements"] = sum(h.share * h.piece.exp_avg_sq.numel() for h in self._pieces if h.layer is not None)
        return RankReading(
            global_step=self._global_step,
            loss=scalars.get("loss", 0.0),
            variance_l1=float(shares @ rows[0]) if self._with_state else None,
            variance_top=float(rows[1].max()) if self._pieces else -math.inf,
            grad_squares=scalars.get("squares"),
            grad_norm=scalars.get("given"),
            local_grad_norm=scalars.get("local"),
            attention_logit=scalars.get("attention_logit", -math.inf),
            output_logit=scalars.get("output_logit", -math.inf),
            batch_digest=scalars.get("digest"),
            **moments,
        )

    def layer_rows(self, layers: list[str]) -> LayerRows:
        """This rank's part of each of the layers, once it is ready."""
        _, rows = self._on_the_host()
        position = {layer: i for i, layer in enumerate(layers)}
        l1, top, nans = [0.0] * len(layers), [-math.inf] * len(layers), [0.0] * len(layers)
        for owned, total, largest in zip(self._pieces, rows[0].tolist(), rows[1].tolist(), strict=True):
            at = position.get(owned.layer) if owned.layer is not None else None
            if at is not None:
                l1[at] += owned.share * total
                top[at] = max(top[at], largest)
                nans[at] = max(nans[at], float(math.isnan(largest)))
        return LayerRows(sums=l1 + nans, tops=top)

    def _on_the_host(self) -> tuple[dict[str, float], Tensor]:
        tensors = self._readout.tensors()
        scalars = {name: float(t) for name, t in zip(self._names, tensors, strict=False)}
        rows = tensors[len(self._names) :]
        return scalars, torch.cat(rows, dim=1) if rows else torch.zeros(5, 0, dtype=torch.float64)


class Readout:
    """Some small float64 tensors of one step. On a CPU they are ready at once; from CUDA they are copied into pinned
    memory behind the step's own work, and are ready after that: at the next step, as a rule."""

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
        """The tensors, on the host, once they are ready."""
        return self._host
