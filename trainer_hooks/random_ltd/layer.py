"""One layer's forward with random-LTD. It takes the place of `forward` in the layer itself: no module is put around it.

So the layer keeps its name, its class, its parameters' names and its hooks (ZeRO 3 gathers the parameters in them), and
a checkpoint is one and the same with and without random-LTD.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sentinel.vocabulary.errors import ConfigError
from trainer_hooks.random_ltd.arguments import Selection
from trainer_hooks.random_ltd.draw import kept_indices, layer_key
from trainer_hooks.random_ltd.routing import Routing
from trainer_hooks.random_ltd.turn import MicroBatchCount, Turn

__all__ = ["DroppingForward"]


class DroppingForward:
    """Called instead of the layer's forward; the first argument is the hidden states, (B, T, …) or (T, B, …)."""

    def __init__(
        self,
        layer: nn.Module,
        number: int,
        turn: Turn,
        routing: Routing,
        *,
        batch_first: bool,
        axes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._layer, self._number, self._turn, self._routing = layer, number, turn, routing
        self._batch_first, self._axes = batch_first, axes
        self._forward = layer.forward
        self._before = vars(layer).get("forward")  # where somebody else has put one into the instance
        self._names = list(inspect.signature(layer.forward).parameters)
        self._count = MicroBatchCount()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        turn = self._turn
        if not self._layer.training or turn.kept is None:
            return self._forward(*args, **kwargs)
        micro_batch = self._count.next(turn.step) if turn.micro_batch is None else turn.micro_batch
        hidden = args[0] if args else kwargs.get(self._names[0])
        if not isinstance(hidden, Tensor) or hidden.ndim < 3:
            raise ConfigError(
                f"random-LTD: {type(self._layer).__name__} should be given its hidden states first, a tensor (B, T, C)"
            )
        samples, seqlen = hidden.shape[:2] if self._batch_first else (hidden.shape[1], hidden.shape[0])
        if turn.kept >= seqlen:
            return self._forward(*args, **kwargs)
        first = turn.data_rank.first_sample(micro_batch, samples)
        key = layer_key(turn.seed, turn.step, self._number)
        indices = kept_indices(key, first, samples, seqlen, turn.kept, hidden.device)
        bypass, kept = self._routing.gather(hidden, indices, self._batch_first)
        along = Selection(indices=indices, seqlen=seqlen, batch_first=self._batch_first, axes=self._axes)
        others = {name: along.of(name, value) for name, value in kwargs.items() if args or name != self._names[0]}
        rest = [along.of(self._name(place), value) for place, value in enumerate(args) if place]
        out = self._forward(kept, *rest, **others)
        if isinstance(out, Tensor):
            return self._routing.scatter(bypass, out, indices, self._batch_first)
        if type(out) is tuple and isinstance(out[0], Tensor):
            return (self._routing.scatter(bypass, out[0], indices, self._batch_first), *out[1:])
        raise ConfigError(
            f"random-LTD: {type(self._layer).__name__} gives back a {type(out).__name__}, and not hidden states"
        )

    def take_place(self) -> None:
        """Puts itself where the layer's forward is looked up first."""
        vars(self._layer)["forward"] = self

    def give_way(self) -> None:
        """Puts back what was there."""
        del vars(self._layer)["forward"]
        if self._before is not None:
            vars(self._layer)["forward"] = self._before

    def _name(self, place: int) -> str:
        return self._names[place] if place < len(self._names) else f"argument {place}"
