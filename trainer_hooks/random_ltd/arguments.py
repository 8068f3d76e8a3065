"""What a layer is given along with its tokens: masks and positions of the kept ones.

By shape, and by the argument's name where a shape is ambiguous; B samples, T tokens, b is 1 or B:

| argument | shape | gathered |
|---|---|---|
| with "mask" or "bias" in its name | (b, T), (b, …, 1, T) | the last axis |
| | (b, …, T, T) | the last two, so that a causal mask stays right and padding stays masked |
| any other (position ids, rotary cos and sin, a second stream) | (b, T, …) | the second axis |
| | (b, h, T, …) | the third |
| | (T, b, …) where the batch comes second | the first |
| `cache_position` | (T,) | the first r: places in a cache, not positions |

A tuple, list or dict is gone through. What has no axis of T tokens, what is None, a flag or a number, what belongs to
an encoder, and a cache stay as they are. What can't be one subset for each sample is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sentinel.vocabulary.errors import ConfigError

_LEFT_ALONE = ("encoder_", "past_key_value", "layer_past", "inference_params")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One layer's kept tokens in one micro-batch."""

    indices: Tensor
    """(B, r) int64, ascending in each row."""

    seqlen: int
    """T."""

    batch_first: bool
    axes: Mapping[str, tuple[int, ...]]
    """Argument's name -> its axes of T tokens, where the caller knows better than the table; () leaves it alone."""

    def of(self, name: str, value: Any) -> Any:
        """What the layer is given instead of that argument."""
        if name.startswith(_LEFT_ALONE):
            return value
        if isinstance(value, Tensor):
            return self._tensor(name, value)
        if type(value) in (tuple, list):
            return type(value)(self.of(name, part) for part in value)
        if type(value) is dict:
            return {key: self.of(str(key), part) for key, part in value.items()}
        if "mask" in name and value is not None and not isinstance(value, bool | int | float | str):
            raise ConfigError(f"random-LTD can't gather {name}, a {type(value).__name__}: give the mask as a tensor")
        return value

    def _tensor(self, name: str, x: Tensor) -> Tensor:
        if name == "cache_position" and x.ndim == 1:
            return x[: self.indices.shape[1]]
        axes = self.axes[name] if name in self.axes else self._axes(name, x)
        for axis in axes:
            x = self._along(x, axis % x.ndim)
        return x

    def _axes(self, name: str, x: Tensor) -> tuple[int, ...]:
        """Its axes of T tokens."""
        if self.seqlen not in x.shape:
            return ()
        if "mask" in name or "bias" in name:
            return self._of_mask(name, x)
        if x.ndim >= 2:
            of_batch = (1, self.indices.shape[0])
            if x.shape[1] == self.seqlen and x.shape[0] in of_batch:
                return (1,)
            if not self.batch_first and x.shape[0] == self.seqlen and x.shape[1] in of_batch:
                return (0,)
            if x.ndim >= 3 and x.shape[2] == self.seqlen and x.shape[0] in of_batch:
                return (2,)
        if x.ndim <= 2 and x.shape[0] == self.seqlen:
            raise self._refusal(name, x, "positions should have an axis for the samples, as (1, T, …)")
        return ()

    def _of_mask(self, name: str, x: Tensor) -> tuple[int, ...]:
        if x.shape[-1] != self.seqlen:
            return ()
        if x.ndim < 2 or x.shape[0] not in (1, self.indices.shape[0]):
            raise self._refusal(name, x, "a mask should begin with an axis for the samples, as (1, 1, T, T)")
        return (-2, -1) if x.ndim >= 3 and x.shape[-2] == self.seqlen else (-1,)

    def _refusal(self, name: str, x: Tensor, advice: str) -> ConfigError:
        return ConfigError(
            f"random-LTD keeps other tokens of each sample, and {name} of shape {tuple(x.shape)} is one for all: "
            f"{advice}"
        )

    def _along(self, x: Tensor, axis: int) -> Tensor:
        samples = self.indices.shape[0]
        if axis == 0:  # (T, b, …)
            x = x.expand(x.shape[0], samples, *x.shape[2:])
            return x[self.indices.t(), torch.arange(samples, device=x.device)]
        x = x.expand(samples, *x.shape[1:]).movedim(axis, 1)
        return x[torch.arange(samples, device=x.device)[:, None], self.indices].movedim(1, axis)
