"""A way to make samples shorter: how many of a sample's targets it trains on, and what it makes of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

from sentinel.vocabulary.errors import ConfigError
from trainer_hooks.seqlen_warmup.axes import Axes, axes_of
from trainer_hooks.seqlen_warmup.cut import in_pieces, truncated
from trainer_hooks.seqlen_warmup.leaves import changed, tensors

__all__ = ["POSITIONS", "SHORTENINGS", "Shortening", "levelling"]

SHORTENINGS = ("truncate", "reshape", "truncate_keep", "reshape_keep")
"""seqtru: the first L targets of each sample. seqres: F // L samples of L of each. *_keep: the rest is used later."""

POSITIONS = frozenset({"position_ids", "positions", "position", "pos_ids"})
"""Names of tensors that hold positions, which are counted anew in each piece of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """What is done to samples of F targets to have samples of L, as F and L are counted in targets throughout.

    Source of the names: Li et al. 2022, "DeepSpeed Data Efficiency", section 3.1 (arXiv:2212.03597).
    """

    kind: str
    """One of SHORTENINGS."""

    full: int
    """F, targets of a whole sample."""

    axes: Axes = field(default_factory=dict)
    """{path or last name of a tensor: its sequence axes}, where its shape does not tell."""

    positions: frozenset[str] = POSITIONS
    """Paths or last names of tensors of position ids."""

    def __post_init__(self) -> None:
        if self.kind not in SHORTENINGS:
            raise ConfigError(f"a batch is shortened by one of {', '.join(SHORTENINGS)}, not {self.kind!r}")

    @property
    def keeps(self) -> bool:
        """Whether what is left over is used later."""
        return self.kind.endswith("_keep")

    @property
    def reshapes(self) -> bool:
        """Whether a sample becomes several."""
        return self.kind.startswith("reshape")

    def trained(self, length: int) -> int:
        """Targets of one sample that are trained on at that length: its first ones."""
        return _trained(self.full, length, self.reshapes)

    def batch(self, batch: Any, length: int) -> Any:
        """The batch at that length. ConfigError where it has no sequence axis, or one that can't be told."""
        found = axes_of(list(tensors(batch)), full=self.full, given=self.axes)
        return changed(batch, lambda path, leaf: self._leaf(path, leaf, found.by_path[path], found.rows, length))

    def _leaf(self, path: str, leaf: Tensor, axes: tuple[int, ...], rows: int, length: int) -> Tensor:
        if not axes:
            return leaf
        if not self.reshapes:
            return truncated(leaf, axes, full=self.full, length=length)
        named = path in self.positions or path.rpartition(".")[2] in self.positions
        return in_pieces(leaf, axes, full=self.full, length=length, rows=rows, positions=named, path=path)


@lru_cache(maxsize=64)
def levelling(waiting: int, samples: int, full: int, *, reshapes: bool) -> int:
    """The largest length at which a step's cut makes whole samples of all that waits; `full` where no length does.

    waiting: targets kept so far; samples: of the step. (waiting + samples * (F - trained(L))) is to be a multiple of F.
    Without a reshape there is one unless batches of several sizes were cut, and it is above F - F / gcd(samples, F).
    """
    if waiting % math.gcd(samples, full) == 0:
        for length in range(full - 1, 0, -1):
            if (waiting + samples * (full - _trained(full, length, reshapes))) % full == 0:
                return length
    return full


def _trained(full: int, length: int, reshapes: bool) -> int:
    return full // length * length if reshapes else length
