"""The pass in C, for float32 and bfloat16 on the CPU: compiled at attach by the machine's compiler, then checked.
Nothing is cached or locked: a stale lock has cost more than the third of a second that compiling takes. The library is
removed as soon as it is loaded. Where anything fails there is no kernel, and the log gives the reason."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trainer_hooks.sample.one_pass.chunked import NoKernel, check
from trainer_hooks.sample.one_pass.memory import Reading, Stopped
from trainer_hooks.sample.one_pass.pieces import AdamConstants, OnePass, Piece

_log = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang", "g++", "clang++")

_OPTIMIZE = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math")  # not -ffast-math: it would lose nan
_FLAGS = (*_OPTIMIZE, "-w", "-shared", "-fPIC", "-pthread", "-x", "c", "-")

_TIME_LIMIT_S = 20.0  # A compiler on a slow filesystem takes a second or two; one that hangs would hold up the training
_TILE = 1 << 16  # elements: about 20 µs of work, so threads end together, and a tile's fixed cost is nothing
_PER_THREAD = 1 << 18  # elements: with fewer than these, starting a thread takes longer than what it saves
TYPES = {torch.float32: 0, torch.bfloat16: 1}


class _Tile(ctypes.Structure):
    """native.c has the same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in "vmp"),
        ("n", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("v_type", "m_type", "p_type", "group")),
        ("piece", ctypes.c_int64),
    )


Kernel = ctypes.CDLL


class Native(OnePass):
    """Its threads end with each call; they are not Python's."""

    name = "native"

    def __init__(self, pieces: Sequence[Piece], kernel: Kernel) -> None:
        super().__init__(pieces)
        self._kernel = kernel
        tiles = []
        for number, piece in enumerate(pieces):
            types = [0 if t is None else TYPES[t.dtype] for t in piece.tensors]
            tiles += [_Tile(*tile, *types, piece.group, number) for tile in piece.tiles(_TILE)]
        self._tiles = (_Tile * len(tiles))(*tiles)
        self._parts = torch.empty((len(tiles), 5), dtype=torch.float64)
        self._elements = sum(piece.exp_avg_sq.numel() for piece in pieces)
        self._groups = 1 + max((piece.group for piece in pieces), default=-1)

    def _pass(self, constants: Sequence[AdamConstants] | None, reading: Reading) -> Tensor:
        groups = None
        if constants is not None:
            if len(constants) < self._groups:
                raise IndexError(f"there are {self._groups} groups of parameters and {len(constants)} of constants")
            scales = [(c.momentum_scale, c.root_scale, c.eps, c.decay) for c in constants]
            groups = torch.tensor(scales, dtype=torch.float32).reshape(-1, 4)
        out = torch.zeros((2 if constants is None else 5, self._pieces), dtype=torch.float64)
        most = torch.get_num_threads() if reading.threads is None else reading.threads
        wanted = min(most, len(os.sched_getaffinity(0)), self._elements // _PER_THREAD)
        left = self._kernel.one_pass(
            self._tiles,
            ctypes.c_int64(len(self._tiles)),
            ctypes.c_void_p(None if groups is None else groups.data_ptr()),
            ctypes.c_void_p(self._parts.data_ptr()),
            ctypes.c_int32(wanted),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int64(self._pieces),
            None if reading.stop is None else ctypes.byref(reading.stop.flag),
        )
        del reading  # alive until here: the kernel goes by the addresses alone
        if left:
            raise Stopped
        return out


@functools.cache
def kernel() -> Kernel | None:
    """The kernel of this process, compiled and checked; None where there can't be one, which is logged once."""
    try:
        return checked(compiled(source()))
    except NoKernel as error:
        _log.warning("Adam's state on the CPU is reduced by torch's operations, 2 to 3 times slower: %s", error)
        return None


def checked(kernel: Kernel) -> Kernel:
    """The kernel, if it gives what float64 gives; NoKernel otherwise."""
    for dtype in TYPES:
        check(lambda pieces: Native(pieces, kernel), torch.device("cpu"), dtype)
    return kernel


def source() -> str:
    return importlib.resources.files(__package__).joinpath("native.c").read_text()


def compiled(text: str, time_limit_s: float = _TIME_LIMIT_S) -> Kernel:
    """Compiles and loads; NoKernel with the reason otherwise."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoKernel("there is no C compiler")
    try:
        with tempfile.TemporaryDirectory(prefix="sentinel-", ignore_cleanup_errors=True) as folder:
            library = Path(folder) / "one_pass.so"
            _compile([compiler, *_FLAGS, "-o", str(library)], text, time_limit_s)
            kernel = ctypes.CDLL(str(library))
    except OSError as error:  # a temporary folder that is full, not ours, or whose files may not be executed
        raise NoKernel(str(error)) from error
    kernel.one_pass.restype = ctypes.c_int32
    return kernel


def _compile(command: Sequence[str], text: str, time_limit_s: float) -> None:
    """Runs the compiler with the text on its stdin, in a session of its own, so that all of it can be ended."""
    with tempfile.TemporaryFile() as standard_input, tempfile.TemporaryFile() as output:
        standard_input.write(text.encode())
        standard_input.seek(0)
        process = subprocess.Popen(
            command, stdin=standard_input, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise NoKernel(f"{command[0]} did not end within {time_limit_s:g} s") from None
        if code:
            output.seek(0)
            raise NoKernel(f"{command[0]} ended with {code}: {output.read(400).decode(errors='replace').strip()}")
