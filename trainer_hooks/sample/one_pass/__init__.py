"""Reductions over Adam's state in one pass, by the fastest kernel that is right on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from trainer_hooks.sample.one_pass import native, triton_pass
from trainer_hooks.sample.one_pass.chunked import Chunked
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece, all_flat

__all__ = ["AdamConstants", "OnePass", "Piece", "one_pass"]


def one_pass(pieces: Sequence[Piece]) -> OnePass:
    """The pass over these pieces, which all lie on one device; the choice is made here, once. The first call in a
    process compiles and checks a kernel: half a second on the CPU, some seconds on CUDA."""
    if all_flat(pieces, "cpu", native.TYPES) and (kernel := native.kernel()) is not None:
        return native.Native(pieces, kernel)
    on_cuda = bool(pieces) and all_flat(pieces, "cuda", triton_pass.DTYPES)
    if on_cuda and (made := triton_pass.triton_pass(pieces)) is not None:
        return made
    return Chunked(pieces)
