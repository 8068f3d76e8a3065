"""Small data sets and indexes for the tests of trainer_hooks.data."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_hooks.data.index import Index, Manifest
from trainer_hooks.data.shards import Job

PAD = 0


def index_of(values: Any, name: str = "voc") -> Index:
    """The index of these values, as an analysis would make it."""
    held = np.asarray(values)
    distinct, counts = np.unique(held, return_counts=True)
    manifest = Manifest(
        metric=name,
        corpus={},
        samples=len(held),
        distinct=len(distinct),
        dtype=held.dtype.name,
        smallest=float(distinct[0]),
        largest=float(distinct[-1]),
    )
    return Index(
        manifest=manifest,
        values=held,
        order=np.argsort(held, kind="stable").astype(np.uint32),
        distinct=distinct,
        offsets=np.concatenate([[0], np.cumsum(counts)]),
    )


def tokens(count: int, vocabulary: int = 500, seed: int = 0) -> NDArray[np.uint16]:
    """Some words are rare, and some places are full of them."""
    draws = np.random.default_rng(seed)
    spread = np.repeat(1.2 + draws.random(count // 50 + 1), 50)[:count]
    return np.asarray(np.minimum(draws.pareto(spread) * 4, vocabulary - 1), dtype=np.uint16)


def token_file(folder: Path, count: int = 6001, seed: int = 0) -> Path:
    path = folder / "tokens.bin"
    tokens(count, seed=seed).tofile(path)
    return path


def megatron_file(folder: Path, count: int = 6001) -> Path:
    path = folder / "megatron.bin"
    tokens(count).astype(np.int32).tofile(path)
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 1, 2)
    index = np.array([count], dtype=np.int32).tobytes() + np.array([0, 0, 1], dtype=np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(header + index)
    return path


def padded_file(folder: Path, samples: int = 300, width: int = 24) -> Path:
    """Rows of 1 to `width` tokens, filled up with PAD."""
    draws = np.random.default_rng(1)
    rows = 1 + tokens(samples * width, vocabulary=90).reshape(samples, width)
    rows[np.arange(width) >= draws.integers(1, width + 1, samples)[:, None]] = PAD
    path = folder / "padded.npy"
    np.save(path, rows)
    return path


def job(data: Path, output: Path, metric: str = "voc", **changed: Any) -> Job:
    asked: dict[str, Any] = {
        "data": (data,),
        "seqlen": None if data.suffix == ".npy" else 20,
        "validation_share": 0.02,
        "pad": PAD if data.suffix == ".npy" else None,
        "metric": metric,
        "output": output,
    }
    return Job(**(asked | changed))
