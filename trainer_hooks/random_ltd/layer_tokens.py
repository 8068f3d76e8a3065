"""How many tokens each layer has seen, counted; with random-LTD that is no longer one number for the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction

from sentinel.vocabulary.errors import CheckpointError

__all__ = ["LayerTokens"]


class LayerTokens:
    """Tokens seen by each layer, summed over samples and data-parallel ranks. Exact: whole numbers, and their mean."""

    def __init__(self, layers: int, consumed_tokens: int = 0) -> None:
        """`consumed_tokens`: of a run so far in which every layer saw all of them."""
        self._seen = [consumed_tokens] * layers

    @property
    def by_layer(self) -> tuple[int, ...]:
        """Of each layer, first to last."""
        return tuple(self._seen)

    @property
    def layer_tokens(self) -> int:
        """Summed over the layers; DeepSpeed's `consumed_layer_tokens`."""
        return sum(self._seen)

    @property
    def effective_tokens(self) -> Fraction:
        """Averaged over the layers: the tokens that the paper says were consumed. A whole number only by chance."""
        return Fraction(self.layer_tokens, len(self._seen))

    def add(self, *, samples: int, seqlen: int, kept: int | None = None, dropping: Collection[int] = ()) -> None:
        """`samples` of `seqlen` tokens each, on all ranks; of these the layers in `dropping` see `kept` at most."""
        less = seqlen if kept is None else min(kept, seqlen)
        for layer in range(len(self._seen)):
            self._seen[layer] += samples * (less if layer in dropping else seqlen)

    def state(self) -> list[int]:
        """For the checkpoint."""
        return list(self._seen)

    def load(self, state: Sequence[int]) -> None:
        """What `state` gave. CheckpointError when it is of a model with another number of layers."""
        if len(state) != len(self._seen):
            raise CheckpointError(
                f"the checkpoint counts tokens of {len(state)} layers, the model has {len(self._seen)}"
            )
        self._seen = [int(count) for count in state]
