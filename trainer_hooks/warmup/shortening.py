"""A way to make samples shorter: how many of a sample's targets it trains on, and what it makes of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, get_args

import torch
from torch import Tensor

from sentinel.vocabulary import pacing
from sentinel.vocabulary.errors import ConfigError
from trainer_hooks.warmup.batch import Axes, axes_of, changed, tensors

SHORTENINGS = get_args(pacing.Shortening)
"""seqtru: the first L targets of each sample. seqres: F // L samples of L of each. *_keep: the rest is used later."""

POSITIONS = frozenset({"position_ids", "positions", "position", "pos_ids"})
"""Names of tensors that hold positions, which are counted anew in each piece of a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortening:
    """What is done to samples of F targets to have samples of L, as F and L are counted in targets throughout. Source
    of the names: Li et al. 2022, "DeepSpeed Data Efficiency", section 3.1 (arXiv:2212.03597)."""

    kind: pacing.Shortening
    full: int  # F, targets of a whole sample
    # {path or last name of a tensor: its sequence axes}, where its shape does not tell.
    axes: Axes = field(default_factory=dict)
    positions: frozenset[str] = POSITIONS  # Paths or last names of tensors of position ids

    @property
    def keeps(self) -> bool:
        """Whether what is left over is used later."""
        return self.kind.endswith("_keep")

    def trained(self, length: int) -> int:
        """Targets of one sample that are trained on at that length: its first ones."""
        return pacing.trained_tokens(length, full=self.full, shorten=self.kind)

    def batch(self, batch: Any, length: int) -> Any:
        """The batch at that length. ConfigError where it has no sequence axis, or an ambiguous one."""
        rows, axes = axes_of(list(tensors(batch)), full=self.full, given=self.axes)

        def shortened(path: str, leaf: Tensor) -> Tensor:
            if not axes[path]:
                return leaf
            if not self.kind.startswith("reshape"):
                return truncated(leaf, axes[path], full=self.full, length=length)
            named = path in self.positions or path.rpartition(".")[2] in self.positions
            return in_pieces(leaf, axes[path], full=self.full, length=length, rows=rows, positions=named, path=path)

        return changed(batch, shortened)


@lru_cache(maxsize=64)
def levelling(waiting: int, samples: int, full: int, kind: pacing.Shortening) -> int:
    """The largest length at which a step's cut makes whole samples of all that waits; `full` where no length does.
    waiting: targets kept so far; samples: of the step. (waiting + samples * (F - trained(L))) is to be a multiple of F.
    Without a reshape there is one unless batches of several sizes were cut, and it is above F - F / gcd(samples, F)."""
    if waiting % math.gcd(samples, full) == 0:
        for length in range(full - 1, 0, -1):
            if (waiting + samples * (full - pacing.trained_tokens(length, full=full, shorten=kind))) % full == 0:
                return length
    return full


def truncated(leaf: Tensor, axes: tuple[int, ...], *, full: int, length: int) -> Tensor:
    """The first L + e along each axis; all of an axis that is shorter than that. Contiguous."""
    for axis in axes:
        size = leaf.shape[axis]
        leaf = leaf.narrow(axis, 0, min(size, length + max(0, size - full)))
    return leaf.contiguous()


def in_pieces(
    leaf: Tensor,
    axes: tuple[int, ...],
    *,
    full: int,
    length: int,
    rows: int,
    positions: bool = False,
    path: str = "",
) -> Tensor:
    """(B, F + e, …) -> (B * (F // L), L + e, …): the pieces of sample 0, then those of sample 1, …; F % L is left over.
    Of a mask (B, 1, F, F) the blocks on its diagonal are the pieces. positions: they are counted from 0 in each piece.
    What all samples share, (1, …) or without a batch axis, stays shared where its pieces are equal, as a causal mask's
    are; where they differ it is repeated for each sample. ConfigError where it has no axis for that."""
    for axis in axes:
        if not full <= leaf.shape[axis] <= full + 1:
            raise ConfigError(f"{path}: rows of {leaf.shape[axis]} can't be reshaped, only of {full} or {full + 1}")
    batch = next((i for i, size in enumerate(leaf.shape) if i not in axes and size in (rows, 1)), None)
    if batch is None:
        leaf, axes = leaf.unsqueeze(0), tuple(axis + 1 for axis in axes)
    at = batch or 0
    pieces = _pieces(leaf, axes, at, full, length)
    if positions:  # where a document begins within a piece they are counted from there already
        first = pieces.narrow(axes[0], 0, 1)
        restarted = pieces.diff(dim=axes[0], prepend=first).lt(0).cumsum(axes[0]).gt(0)
        pieces = torch.where(restarted, pieces, pieces - first)
    if batch is not None and leaf.shape[at] == rows:
        return pieces.contiguous()
    first = pieces.narrow(at, 0, 1)
    if pieces.equal(first.expand_as(pieces)):
        return first.contiguous() if batch is not None else first[0].contiguous()
    if batch is None:
        raise ConfigError(f"{path or 'the batch'} differs from piece to piece: give it a batch axis that can hold that")
    return pieces.repeat(*(rows if i == at else 1 for i in range(pieces.dim())))


def _pieces(leaf: Tensor, axes: tuple[int, ...], batch: int, full: int, length: int) -> Tensor:
    """The batch axis is B times the pieces afterwards, a sample's pieces beside one another."""
    windows = leaf
    for axis in axes:
        windows = windows.unfold(axis, length + leaf.shape[axis] - full, length)  # contents are the last axes
    if len(axes) == 1:
        windows = windows.movedim(-1, axes[0] + 1).movedim(axes[0], batch + 1)
    else:  # (…, n, n, …, La, Lb): the diagonal is taken, its axis comes last
        windows = windows.diagonal(dim1=axes[0], dim2=axes[1]).movedim((-3, -2), axes).movedim(-1, batch + 1)
    return windows.flatten(batch, batch + 1)
