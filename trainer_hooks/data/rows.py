"""The samples of a data set as rows of tokens, and what tells the data set from others."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.index import mapped_array
from trainer_hooks.gpt.data import load_corpus

__all__ = ["Rows", "open_rows"]

_PIECES, _PIECE_BYTES = 256, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Training samples, none of the validation's."""

    tokens: NDArray[Any]
    """(samples, width) whole numbers, mapped. Packed rows overlap by one token, the last one's label."""

    pad: int | None
    """The token that fills short samples up, and is no data; None where samples are full."""

    fingerprint: Mapping[str, Any]
    """What an index is checked against: shape, type, and a digest of pieces of the data, evenly spaced."""

    mapped: mmap.mmap | None
    """The file that the tokens are in; None where they are in memory."""

    def forget(self) -> None:
        """Lets go of the memory that reading the file has filled; the system may keep it cached."""
        _forget(self.mapped)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Tokens of a row: seqlen + 1 of packed data."""
        return int(self.tokens.shape[1])


def open_rows(
    paths: Sequence[Path], *, seqlen: int | None, validation_share: float = 0.02, pad: int | None = None
) -> Rows:
    """The rows of what the trainer's --data takes, or of one padded (samples, width) .npy, whose samples are all taken.
    DataError names the file and what would be right."""
    if any(path.suffix == ".npy" for path in paths):
        return _padded(paths, pad)
    if seqlen is None:
        raise DataError("packed data needs --seqlen, the trainer's full sequence length")
    if pad is not None:
        raise DataError("--pad is for padded .npy data; text and token files are packed, without padding")
    corpus = load_corpus(paths, seqlen=seqlen, vocabulary=None, validation_share=validation_share)
    row, item = corpus.tokens, corpus.tokens.itemsize
    shape = (corpus.training_samples, seqlen + 1)
    tokens = as_strided(row, shape=shape, strides=(seqlen * item, item), writeable=False)
    facts = {"samples": shape[0], "seqlen": seqlen}
    return Rows(tokens=tokens, pad=None, fingerprint={**_fingerprint(row), **facts}, mapped=_mapped(row))


def _padded(paths: Sequence[Path], pad: int | None) -> Rows:
    if len(paths) != 1:
        raise DataError(f"one .npy file is taken, not {len(paths)} paths")
    tokens = mapped_array(paths[0])
    if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{paths[0]}: {tokens.dtype} {tokens.shape} are no (samples, width) rows of whole numbers")
    if not tokens.flags.c_contiguous:
        raise DataError(f"{paths[0]}: its rows do not stand one after the other; save it in C order")
    facts = {"samples": len(tokens), "width": tokens.shape[1], "pad": pad}
    return Rows(
        tokens=tokens,
        pad=pad,
        fingerprint={**_fingerprint(tokens.reshape(-1)), **facts},
        mapped=_mapped(tokens),
    )


def _forget(mapped: mmap.mmap | None) -> None:
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(tokens: NDArray[Any]) -> mmap.mmap | None:
    """The file's map, which numpy keeps to itself."""
    found = getattr(tokens, "_mmap", None)  # numpy passes it on to the views that it makes
    return found if isinstance(found, mmap.mmap) else None


def _fingerprint(row: NDArray[Any]) -> dict[str, Any]:
    each = _PIECE_BYTES // row.itemsize
    digest = hashlib.sha256()
    for begin in np.linspace(0, max(len(row) - each, 0), _PIECES).astype(int):
        digest.update(np.ascontiguousarray(row[begin : begin + each]).tobytes())
        _forget(_mapped(row))  # the system maps far more than was asked for: all pieces' surroundings would be the file
    return {"tokens": len(row), "dtype": row.dtype.name, "digest": digest.hexdigest()}
