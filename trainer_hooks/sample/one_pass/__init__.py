"""Reductions over Adam's state in one pass, by the fastest kernel that is right on this machine.

In: views of v and m on one device. Out: sums and maxima, as float64 on that device.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from trainer_hooks.sample.one_pass import native, triton_pass
from trainer_hooks.sample.one_pass.chunked import Chunked
from trainer_hooks.sample.one_pass.memory import Stop, Stopped, identity, why_unreadable
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Part, Piece, all_flat
from trainer_hooks.sample.one_pass.projection import Projection

__all__ = [
    "AdamConstants",
    "OnePass",
    "Part",
    "Piece",
    "Projection",
    "Stop",
    "Stopped",
    "expected_pass",
    "identity",
    "one_pass",
    "why_unreadable",
]

_log = logging.getLogger(__name__)


def one_pass(pieces: Sequence[Piece]) -> OnePass:
    """The pass over these pieces, which all lie on one device; the choice is made here, once, and torch's operations in
    place of a kernel are a warning. The first call in a process compiles and checks a kernel: half a second on the CPU,
    some seconds on CUDA."""
    kind = pieces[0].exp_avg_sq.device.type if pieces else "cpu"
    taken = {"cpu": native.TYPES, "cuda": triton_pass.DTYPES}.get(kind, ())
    if not all_flat(pieces, kind, taken):
        types = sorted({f"{t.dtype} on {t.device}" for piece in pieces for t in piece.present})
        _log.warning("Adam's state is reduced by torch's operations: no kernel for %s", ", ".join(types))
    elif kind == "cpu" and (kernel := native.kernel()) is not None:
        return native.Native(pieces, kernel)
    elif kind == "cuda" and (made := triton_pass.triton_pass(pieces)) is not None:
        return made
    return Chunked(pieces)


def expected_pass(device: torch.device) -> str:
    """The name of the pass over a state of float32 on that device, before there is one; compiles as `one_pass` does."""
    if device.type == "cpu":
        return native.Native.name if native.kernel() is not None else Chunked.name
    return triton_pass.TritonPass.name if triton_pass.usable(device) else Chunked.name
