"""Training data: text as bytes, or memory-mapped token files. A sample is full_seqlen + 1 neighbouring tokens."""

from __future__ import annotations

import random
import struct
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError

_ASCII = 128
_TEXT_BYTES = 4_000_000
"""How much of a text corpus is taken, after its lines are shuffled: enough for every run that fits bytes."""

MAGIC = b"MMIDIDX\x00\x00"
MMIDIDX = struct.Struct("<9sQBQQ")  # Magic, version, code of the type, how many sequences, and documents
_MEGATRON_DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 8: np.uint16}
"""Megatron's codes; floats are no tokens, and are refused below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One long row of tokens, split into training and validation samples once and for all."""

    tokens: NDArray[Any]  # (N,) whole numbers; in memory, or mapped
    vocabulary: int
    seqlen: int
    training_samples: int
    validation_samples: int  # They stand at the end of the row, and never move: not at a reseed, not at a restart

    def training(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(len(indices), seqlen + 1) tokens of training samples."""
        return self._samples(indices)

    def validation(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(len(indices), seqlen + 1) tokens of validation samples."""
        return self._samples(indices + self.training_samples)

    def _samples(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        offsets = indices[:, None] * self.seqlen + np.arange(self.seqlen + 1)
        taken: NDArray[np.int64] = self.tokens[offsets].astype(np.int64)
        if taken.size and int(taken.max()) >= self.vocabulary:
            raise DataError(f"the data holds token {taken.max()}, and the vocabulary has {self.vocabulary}")
        return taken


def load_corpus(paths: Sequence[Path], *, seqlen: int, vocabulary: int | None, validation_share: float) -> Corpus:
    """Of one token file (.bin), or of text files and folders of them (default: Python's own). DataError names it."""
    if any(p.suffix in (".bin", ".idx") for p in paths):
        if len(paths) != 1:
            raise DataError(f"one token file is taken, not {len(paths)}")
        tokens = _token_file(paths[0])
        size = vocabulary or 50304  # GPT-2's 50257, rounded up to a multiple of 64
    else:
        tokens = _text(paths or (Path(sysconfig.get_paths()["stdlib"]),), stdlib=not paths)
        size = _ASCII
    samples = (len(tokens) - 1) // seqlen
    validation = max(1, int(samples * validation_share))
    if samples - validation < 1:
        raise DataError(f"{_said(paths)}: {len(tokens)} tokens are too few for two samples of {seqlen} + 1")
    return Corpus(
        tokens=tokens,
        vocabulary=size,
        seqlen=seqlen,
        training_samples=samples - validation,
        validation_samples=validation,
    )


def _text(paths: Sequence[Path], *, stdlib: bool) -> NDArray[np.uint8]:
    """The ASCII lines of the files, shuffled with a fixed seed, as bytes."""
    lines: list[bytes] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        # of the library its own top level alone: the same files whatever else is installed
        files = [path] if path.is_file() else sorted(path.glob("*.py") if stdlib else path.rglob("*"))
        for file in (p for p in files if stdlib or p.is_file()):
            try:
                lines += [line for line in file.read_bytes().splitlines(keepends=True) if line.isascii()]
            except OSError as error:
                raise DataError(f"{file}: {error.strerror}") from error
    if not lines:
        raise DataError(f"{_said(paths)}: no line of ASCII text")
    random.Random(0).shuffle(lines)  # noqa: S311 - an order, not a secret
    return np.frombuffer(b"".join(lines)[:_TEXT_BYTES], dtype=np.uint8)


def _token_file(path: Path) -> NDArray[Any]:
    index = path.with_suffix(".idx")
    data = path.with_suffix(".bin")
    if not data.is_file():
        raise DataError(f"{data}: no such file")
    if index.is_file():
        return _megatron(data, index)
    if path.suffix == ".idx":
        raise DataError(f"{index}: no such file")
    size = data.stat().st_size
    if not size or size % 2:
        raise DataError(f"{data}: {size} bytes are no row of uint16 tokens (and there is no {index.name} beside it)")
    return np.memmap(data, dtype=np.uint16, mode="r")


def _megatron(data: Path, index: Path) -> NDArray[Any]:
    """Megatron's indexed dataset (MMapIndexedDataset, version 1): its documents, end to end."""
    with index.open("rb") as file:
        version, code, _ = mmididx_header(file, f"{index}: not an index of Megatron's")
    dtype = _MEGATRON_DTYPES.get(code)
    if version != 1 or dtype is None or not np.issubdtype(dtype, np.integer):
        raise DataError(f"{index}: version {version} with dtype code {code} is not read here (1, whole numbers)")
    size = data.stat().st_size
    if not size or size % np.dtype(dtype).itemsize:
        raise DataError(f"{data}: {size} bytes are no row of {np.dtype(dtype).name} tokens, as {index.name} says")
    return np.memmap(data, dtype=dtype, mode="r")


def mmididx_header(file: IO[bytes], otherwise: str) -> tuple[int, int, int]:
    """Version, code of the type and number of sequences of an .idx as Megatron and DeepSpeed write them; leaves the
    file behind it. DataError with `otherwise` where it is none."""
    header = file.read(MMIDIDX.size)
    if len(header) < MMIDIDX.size or not header.startswith(MAGIC):
        raise DataError(f"{otherwise} (MMIDIDX)")
    _, version, code, count, _ = MMIDIDX.unpack(header)
    return version, code, count


def _said(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths)) or "Python's standard library"
