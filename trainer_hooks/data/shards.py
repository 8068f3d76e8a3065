"""A data set as rows of tokens, one per sample, cut into shards: each is measured once, and its result is a file."""

from __future__ import annotations

import functools
import hashlib
import json
import mmap
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.index import mapped_array
from trainer_hooks.data.metrics import Metric, count_tokens, named
from trainer_hooks.gpt.data import load_corpus

_PIECES, _PIECE_BYTES = 256, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Training samples, none of the validation's."""

    # (samples, width) whole numbers, mapped. Packed rows overlap by one token, the last one's label.
    tokens: NDArray[Any]
    pad: int | None  # The token that fills short samples up, and is no data; None where samples are full
    # What an index is checked against: shape, type, and a digest of pieces of the data, evenly spaced.
    fingerprint: Mapping[str, Any]
    row: NDArray[Any]  # (N,) all of the data end to end, as it lies in memory or in the file

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Tokens of a row: seqlen + 1 of packed data."""
        return int(self.tokens.shape[1])


def open_rows(
    paths: Sequence[Path], *, seqlen: int | None, validation_share: float = 0.02, pad: int | None = None
) -> Rows:
    """Of what the trainer's --data takes, or of all of a padded (samples, width) .npy. DataError names the file."""
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
    return Rows(tokens=tokens, pad=None, fingerprint={**_fingerprint(row), **facts}, row=row)


def _padded(paths: Sequence[Path], pad: int | None) -> Rows:
    if len(paths) != 1:
        raise DataError(f"one .npy file is taken, not {len(paths)} paths")
    tokens = mapped_array(paths[0])
    if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
        raise DataError(f"{paths[0]}: {tokens.dtype} {tokens.shape} are no (samples, width) rows of whole numbers")
    if not tokens.flags.c_contiguous:
        raise DataError(f"{paths[0]}: its rows are not contiguous; save it in C order")
    row, facts = tokens.reshape(-1), {"samples": len(tokens), "width": tokens.shape[1], "pad": pad}
    return Rows(tokens=tokens, pad=pad, fingerprint={**_fingerprint(row), **facts}, row=row)


def _forget(row: NDArray[Any]) -> None:
    """Lets go of the memory that reading a mapped file has filled; the system may keep it cached."""
    mapped = getattr(row, "_mmap", None)  # numpy keeps the map to itself, and passes it on to the views that it makes
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)


def _fingerprint(row: NDArray[Any]) -> dict[str, Any]:
    each = _PIECE_BYTES // row.itemsize
    digest = hashlib.sha256()
    for begin in np.linspace(0, max(len(row) - each, 0), _PIECES).astype(int):
        digest.update(np.ascontiguousarray(row[begin : begin + each]).tobytes())
        _forget(row)  # the system maps far more than was asked for: all pieces' surroundings would be the file
    return {"tokens": len(row), "dtype": row.dtype.name, "digest": digest.hexdigest()}


Stage = Literal["counts", "values"]

_SHARD_TOKENS = range(1 << 22, 1 << 27)
"""From 30 ms of work, which writing a file is small beside, to a second: what a kill can cost."""

_SHARDS = 64  # as many as this where the data is neither small nor large, so that workers share it evenly

_BATCH_TOKENS: dict[Stage, int] = {"counts": 1 << 17, "values": 1 << 15}
"""Tokens that are looked at at once: as many as the processor's cache takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be measured; the same on every rank and in every worker."""

    data: tuple[Path, ...]
    seqlen: int | None
    validation_share: float
    pad: int | None
    metric: str  # Of an index: one that `metrics.named` takes
    output: Path  # The folder that the index's own folder is made in; shared by all ranks
    shard_samples: int | None = None  # Samples of a shard; None is as many as take about a second

    @property
    def folder_name(self) -> str:
        return self.metric.replace(":", ".")

    def rows(self) -> Rows:
        return open_rows(self.data, seqlen=self.seqlen, validation_share=self.validation_share, pad=self.pad)

    def shards(self, rows: Rows) -> list[range]:
        even = -(-len(rows) // _SHARDS)
        least, most = (max(1, tokens // rows.width) for tokens in (_SHARD_TOKENS.start, _SHARD_TOKENS.stop))
        each = self.shard_samples or min(max(least, even), most)
        return [range(begin, min(begin + each, len(rows))) for begin in range(0, len(rows), each)]

    def work(self, rows: Rows) -> Path:
        """The folder of the shards; another for other data, another metric or other shards."""
        identity = {"metric": self.metric, "corpus": dict(rows.fingerprint), "each": len(self.shards(rows)[0])}
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        return self.output / f".{self.folder_name}.{digest}.work"


def shard_path(work: Path, stage: Stage, number: int) -> Path:
    """Where the shard's result stands once it is whole."""
    return work / f"{stage}-{number:06}.npy"


def shard_maker(job: Job, rows: Rows, work: Path, stage: Stage) -> Callable[[int], int]:
    """A function that makes and stores the result of the shard of that number, and returns the number. ConfigError."""
    shards, metric = job.shards(rows), None
    if stage == "values":
        metric = named(job.metric, width=rows.width, pad=rows.pad, counts=read_counts(work))

    def make(number: int) -> int:
        if metric is None:
            parts = (rows.tokens[batch.start : batch.stop] for batch in _batches(rows, shards[number], "counts"))
            found = summed(count_tokens(part, rows.pad) for part in parts)
        else:
            found = _measured(metric, rows, shards[number])
        written(shard_path(work, stage, number), functools.partial(np.save, arr=found, allow_pickle=False))
        _forget(rows.row)
        return number

    return make


def read_counts(work: Path) -> NDArray[np.int64] | None:
    """How often each token occurs in the data; None where the metric needs no counts."""
    path = work / "counts.npy"
    return np.load(path, allow_pickle=False) if path.exists() else None


def _batches(rows: Rows, shard: range, stage: Stage) -> list[range]:
    each = max(1, _BATCH_TOKENS[stage] // rows.width)
    return [shard[begin : begin + each] for begin in range(0, len(shard), each)]


def summed(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The sum of counts by token, as long as the longest of them."""
    total = np.zeros(0, dtype=np.int64)
    for counts in parts:
        longer, shorter = (counts, total) if len(counts) > len(total) else (total, counts)
        longer[: len(shorter)] += shorter
        total = longer
    return total


def _measured(metric: Metric, rows: Rows, shard: range) -> NDArray[Any]:
    """(samples of the shard,) values; their type is that of the first sample's."""
    found = np.empty(len(shard), dtype=metric.values(rows.tokens[:1]).dtype)
    for batch in _batches(rows, shard, "values"):
        values = metric.values(rows.tokens[batch.start : batch.stop])
        if values.dtype != found.dtype:
            raise DataError(f"{metric.name} gave {values.dtype} for samples {batch}, and {found.dtype} for the first")
        found[batch.start - shard.start : batch.stop - shard.start] = values
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        worst = shard.start + int(np.flatnonzero(~np.isfinite(found))[0])
        value = found[worst - shard.start]
        raise DataError(f"{metric.name} is {value} for sample {worst}: samples can't be ordered so")
    return found


def written(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file whole or not at all: beside its place, to the disk, then renamed."""
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    with beside.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
