"""One tensor, made shorter along its sequence axes: cut off, or cut into pieces.

An axis of F + e (F the full length in targets, e = 0 or 1) becomes one of L + e. Piece k of a sample holds its targets
[k L, (k + 1) L): where e = 1 the next piece begins with the token that this one ends with, so that no target is lost.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sentinel.vocabulary.errors import ConfigError

__all__ = ["in_pieces", "truncated"]


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
    are; where they differ it is repeated for each sample. ConfigError where it has no axis for that.
    """
    for axis in axes:
        if not full <= leaf.shape[axis] <= full + 1:
            raise ConfigError(f"{path}: rows of {leaf.shape[axis]} can't be reshaped, only of {full} or {full + 1}")
    batch = next((i for i, size in enumerate(leaf.shape) if i not in axes and size in (rows, 1)), None)
    if batch is None:
        leaf, axes = leaf.unsqueeze(0), tuple(axis + 1 for axis in axes)
    at = batch or 0
    pieces = _pieces(leaf, axes, at, full, length)
    if positions:
        pieces = _begun_anew(pieces, axes[0])
    if batch is not None and leaf.shape[at] == rows:
        return pieces.contiguous()
    first = pieces.narrow(at, 0, 1)
    if pieces.equal(first.expand_as(pieces)):
        return first.contiguous() if batch is not None else first[0].contiguous()
    if batch is None:
        raise ConfigError(f"{path or 'the batch'} differs from piece to piece: give it a batch axis that can hold that")
    return pieces.repeat(*(rows if i == at else 1 for i in range(pieces.dim())))


def _begun_anew(positions: Tensor, axis: int) -> Tensor:
    """Where a document begins within a piece its positions are counted from there already."""
    restarted = positions.diff(dim=axis, prepend=positions.narrow(axis, 0, 1)).lt(0).cumsum(axis).gt(0)
    return torch.where(restarted, positions, positions - positions.narrow(axis, 0, 1))


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
