"""Pseudo-random permutations that are computed, not stored: where a position goes, in constant time and memory.

A permutation of n numbers is a Feistel network over a grid of about sqrt(n) by sqrt(n) cells; a result of n or more
goes through the network again.

Source: Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains" (generalized Feistel, cycle walking); the mixing
function is SplitMix64's finalizer (Steele, Lea & Flood 2014).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from trainer_hooks.splitmix import FIRST, GOLDEN, MASK, SECOND, mixed

Words = NDArray[np.uint64]

_U_FIRST, _U_SECOND = np.uint64(FIRST), np.uint64(SECOND)
_ONE, _TWO, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (1, 2, 27, 30, 31, 32))
_ROUNDS = 6
"""With four, of the orders of four numbers the rarest came up half as often as the others; with six, as often."""


@lru_cache(maxsize=4096)
def key(*words: int) -> int:
    """64 bits out of whole numbers: which seed, which pass, which segment."""
    state = len(words)
    for word in words:
        state = mixed((state ^ (word & MASK)) + GOLDEN & MASK)
    return state


def noise(of: int, count: int) -> Words:
    """(count,) pseudo-random words of 64 bits."""
    return _mix(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(of & MASK))


class Permutation:
    """One permutation, or several that are addressed together, by their number."""

    def __init__(self, sizes: int | NDArray[np.int64], keys: int | Words) -> None:
        """Of so many numbers each, from 1 up to 2**60."""
        size = np.atleast_1d(np.asarray(sizes, dtype=np.uint64))
        rows = np.maximum(np.sqrt(size.astype(np.float64)).astype(np.uint64), np.minimum(size, _TWO))
        of = np.atleast_1d(np.asarray(keys, dtype=np.uint64))
        words = [_mix(of + np.uint64(GOLDEN * (r + 1) & MASK)) for r in range(_ROUNDS)]
        self._grids = [size, rows, (size + rows - _ONE) // np.maximum(rows, _ONE), *words]

    def __call__(self, positions: NDArray[np.int64], of: NDArray[np.intp] | None = None) -> NDArray[np.int64]:
        """Where each position, from 0 up to its size, goes: (count,). `of` (count,) says which permutation's it is."""
        grids = self._grids if of is None else [values[of] for values in self._grids]
        x = _once(positions.astype(np.uint64), *grids)
        outside = np.flatnonzero(x >= grids[0])
        while outside.size:
            part = grids if of is None else [values[outside] for values in grids]
            x[outside] = _once(x[outside], *part)
            outside = outside[x[outside] >= part[0]]
        return x.astype(np.int64)


def _once(x: Words, _: Words, rows: Words, columns: Words, *words: Words) -> Words:
    left = x // columns
    right = x - left * columns
    for number, word in enumerate(words):
        if number % 2:
            right = _turned(right, left, word, columns)
        else:
            left = _turned(left, right, word, rows)
    left *= columns
    left += right
    return left


def _turned(x: Words, by: Words, word: Words, modulus: Words) -> Words:
    """x moved on, modulo the modulus, by a pseudo-random number that depends on `by` and the round's word."""
    moved = by ^ word
    moved *= _U_FIRST
    moved ^= moved >> _U32
    moved *= _U_SECOND
    moved >>= _U32
    moved *= modulus  # both below 2**32: a number below the modulus, in the upper half
    moved >>= _U32
    moved += x
    turned: Words = np.minimum(moved, moved - modulus)  # what would be negative wraps round to something huge
    return turned


def _mix(x: Words) -> Words:
    x = (x ^ (x >> _U30)) * _U_FIRST
    x = (x ^ (x >> _U27)) * _U_SECOND
    mixed: Words = x ^ (x >> _U31)
    return mixed
