"""The pass on CUDA, for float32, bfloat16 and float16: one launch for each group of parameters, in Triton."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.chunked import NoKernel, check
from trainer_hooks.sample.one_pass.memory import Reading
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece

_log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_UNASKED = AdamConstants(beta1=0, beta2=0, eps=0, step=1)


_Kind = tuple[int, tuple[torch.dtype | None, ...], bool]
"""Of a piece: its group, the types of v, m and parameter, whether every tensor begins at a multiple of 16 bytes."""


class TritonPass(OnePass):
    name = "triton"

    def __init__(self, pieces: Sequence[Piece], kernels: Any) -> None:
        super().__init__(pieces)
        self._kernels = kernels
        table, ends, self._launches = _plan(pieces, kernels.TILE)
        self._tiles = len(table)
        self._table = torch.tensor(table, dtype=torch.int64).reshape(-1, 4).t().contiguous().to(self.device)
        self._ends = torch.tensor(ends, dtype=torch.int64).t().contiguous().to(self.device)

    def _pass(self, constants: Sequence[AdamConstants] | None, reading: Reading) -> Tensor:
        rows = 2 if constants is None else 5
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            parts = torch.full((rows, self._tiles), math.nan, dtype=torch.float64, device=self.device)
            for tiles, kind in self._launches:
                self._launch(tiles, kind, parts, None if constants is None else constants[kind[0]])
            out = torch.empty((rows, self._pieces), dtype=torch.float64, device=self.device)
            self._kernels.per_piece[(self._pieces,)](
                parts, self._ends, out, self._tiles, self._pieces, rows=rows, block=1024
            )
        del reading  # what is read is alive until here: later work on the stream comes after these launches
        return out

    def _launch(self, tiles: range, kind: _Kind, parts: Tensor, of: AdamConstants | None) -> None:
        _, dtypes, aligned = kind
        v, m, p = (self._kernels.TYPES.get(dtype) for dtype in dtypes)
        scales = of or _UNASKED
        momentum_scale = scales.momentum_scale if p or not scales.decay else math.nan
        self._kernels.per_tile[(len(tiles),)](
            self._table,
            parts,
            tiles.start,
            self._tiles,
            float(momentum_scale),
            float(scales.root_scale),
            float(scales.eps),
            float(scales.decay),
            v_type=v,
            m_type=m if of else None,
            p_type=p if of else None,
            aligned=aligned,
            size=self._kernels.TILE,
            block=self._kernels.BLOCK,
        )


def triton_pass(pieces: Sequence[Piece]) -> TritonPass | None:
    """The pass over these pieces, checked on their device; None where there can't be one, and the log says why."""
    device = pieces[0].exp_avg_sq.device
    try:
        _checked(device)
        made = TritonPass(pieces, _kernels())
        made.variance()
    except Exception as error:  # noqa: BLE001 - Triton, its compiler and the driver fail in ways of their own
        _log.warning("Adam's state on %s is reduced by torch's operations (4 times the traffic): %s", device, error)
        return None
    return made


def usable(device: torch.device) -> bool:
    """Whether the kernels are right on this device; what is wrong is said where the pass is made."""
    try:
        _checked(device)
    except Exception:  # noqa: BLE001 - see `triton_pass`
        return False
    return True


@functools.cache
def _checked(device: torch.device) -> None:
    for dtype in DTYPES:
        check(lambda pieces: TritonPass(pieces, _kernels()), device, dtype)


def _kernels() -> Any:
    try:
        from trainer_hooks.sample.one_pass import triton_kernel
    except ImportError as error:
        raise NoKernel(f"there is no Triton: {error}") from error
    return triton_kernel


def _plan(
    pieces: Sequence[Piece], size: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, int]], list[tuple[range, _Kind]]]:
    """(tiles, 4) addresses of v, m, parameter, and lengths; (S, 2) first tile and end of each piece; the launches:
    tiles that lie one behind the other, of pieces of one kind."""
    kinds = [_kind(piece) for piece in pieces]
    table: list[tuple[int, ...]] = []
    ends = [(0, 0)] * len(pieces)
    launches: list[tuple[range, _Kind]] = []
    for kind, numbers in groupby(sorted(range(len(pieces)), key=lambda number: repr(kinds[number])), kinds.__getitem__):
        start = len(table)
        for number in numbers:
            first = len(table)
            table += pieces[number].tiles(size)
            ends[number] = first, len(table)
        if len(table) > start:
            launches.append((range(start, len(table)), kind))
    return table, ends, launches


def _kind(piece: Piece) -> _Kind:
    dtypes = tuple(t.dtype if t is not None else None for t in piece.tensors)
    return piece.group, dtypes, all(tensor.data_ptr() % 16 == 0 for tensor in piece.present)
