"""A random projection of each piece's momentum and parameter: a number that moves where elements change their places or
signs, which leave every sum and norm as it was.

Johnson & Lindenstrauss 1984; with signs as Achlioptas 2003, "Database-friendly random projections": of two states x and
y that were read at the same places, E (s·x - s·y)² = |x - y|².
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.memory import Flat, Memory
from trainer_hooks.sample.one_pass.pieces import Piece
from trainer_hooks.splitmix import mixed

_TILE = 1 << 20  # signs; element i of a piece has sign (i + its key) mod so many
_CHUNK_CPU = 1 << 16
"""Elements: their float64 copy (512 kB) is in the cache when it is multiplied. CUDA takes a tile at a time."""


class Projection:
    """Of pieces on one device; keeps no memory alive, as `OnePass`."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._device = pieces[0].exp_avg_sq.device if pieces else torch.device("cpu")
        self._memory = Memory(t for piece in pieces for t in (piece.exp_avg, piece.parameter) if t is not None)
        self._pieces = [
            (piece.key, [None if t is None else Flat(t) for t in (piece.exp_avg, piece.parameter)]) for piece in pieces
        ]
        self._sizes = [piece.exp_avg_sq.numel() for piece in pieces]

    def read(self) -> Tensor:
        """(2, S) float64 on the pieces' device: of m and of the parameter of each piece, the sum over its elements with
        signs of their own and, beyond 2^20 elements, factors of 0.5 to 1. nan where the piece holds none, or a nan.
        RuntimeError where the state was freed or moved."""
        opened, signs = self._memory.open(), _signs().to(self._device, torch.float64)
        room = min(_CHUNK_CPU if self._device.type == "cpu" else _TILE, max(self._sizes, default=0))
        scratch = torch.empty(room, dtype=torch.float64, device=self._device)
        found = torch.zeros((2, len(self._pieces)), dtype=torch.float64, device=self._device)
        for at, (key, flats) in enumerate(self._pieces):
            for row, flat in enumerate(flats):
                if flat is None:
                    found[row, at] = torch.nan
                else:
                    self._add(flat.of(opened), key, signs, scratch, found[row, at])
        return found

    def _add(self, x: Tensor, key: int, signs: Tensor, scratch: Tensor, into: Tensor) -> None:
        start = 0
        while start < x.numel():
            tile, place = divmod(start + key % _TILE, _TILE)
            end = min(x.numel(), start + len(scratch), start + _TILE - place)
            copy = scratch[: end - start].copy_(x[start:end])
            into.add_(torch.dot(copy, signs[place : place + end - start]), alpha=1 - mixed(tile) / 2**65)
            start = end


@cache
def _signs() -> Tensor:
    """(2^20,) int8, 1 or -1: the same in every version of torch, on every machine."""
    drawn = torch.frombuffer(bytearray(hashlib.shake_256(b"signs").digest(_TILE // 8)), dtype=torch.uint8)
    bits = drawn.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten().to(torch.int8) * 2 - 1
