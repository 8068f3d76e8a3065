"""The index as DeepSpeed's own files: written for a `data_efficiency` JSON, and read from DeepSpeed's analyzer.

    NAME_sample_to_metric               a value per sample
    NAME_index_to_metric                the distinct values, ascending
    NAME_index_to_sample                for each of them, its samples
    NAME_index_to_sample_percentile_merged  the same, of a hundred values at most: what percentiles are drawn by

each as .bin (whole numbers) and .idx (how many belong together), as MMapIndexedDatasetBuilder of DeepSpeed 0.19.8
writes them: MMIDIDX, version 1, with DeepSpeed's codes of types (6 is uint16, Megatron's is 8).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError
from trainer_hooks.data.index import Index, Manifest
from trainer_hooks.gpt.data import MAGIC, MMIDIDX, mmididx_header

_CODED = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64)
_TYPES: dict[int, type[np.integer[Any]]] = dict(enumerate(_CODED, start=1))
_CHUNK = 1 << 20


def whole_numbers(values: NDArray[Any], scale: float = 1.0) -> NDArray[np.int64]:
    """Values as DeepSpeed's files can hold them: scaled, rounded to the nearest (of two, the even one)."""
    return np.rint(values * scale).astype(np.int64) if values.dtype.kind == "f" or scale != 1.0 else values.astype("i8")


def write_deepspeed(index: Index, folder: Path, *, scale: float = 1.0) -> Path:
    """Writes the files, and returns what precedes `_sample_to_metric` in their names; NAME is the metric's."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / index.name.replace(":", ".")
    edges = whole_numbers(np.array([index.distinct[0], index.distinct[-1]]), scale)
    of_values = _fit(int(edges[0]), int(edges[1]))
    of_samples = _fit(0, len(index) - 1)
    chunks = (whole_numbers(index.values[at : at + _CHUNK], scale) for at in range(0, len(index), _CHUNK))
    _write(f"{prefix}_sample_to_metric", of_values, chunks, np.ones(len(index), dtype=np.int32))
    values, begins = _groups(index, scale)
    sizes = np.diff(begins)
    if len(sizes) and sizes.max() >= 1 << 31:
        raise DataError(f"{prefix}: more than 2**31 samples have one value, which DeepSpeed's files can't hold")
    groups = (np.sort(index.order[b:e]) for b, e in pairwise(begins))
    _write(f"{prefix}_index_to_metric", of_values, iter([values]), np.ones(len(values), dtype=np.int32))
    _write(f"{prefix}_index_to_sample", of_samples, groups, sizes.astype(np.int32))
    step = max(1, len(values) // 100)
    merged = np.append(begins[:-1:step], begins[-1])
    again = (np.sort(index.order[b:e]) for b, e in pairwise(begins))
    _write(f"{prefix}_index_to_sample_percentile_merged", of_samples, again, np.diff(merged).astype(np.int32))
    return prefix


def read_deepspeed(prefix: Path) -> Index:
    """The index in DeepSpeed's files; `prefix` is what precedes `_sample_to_metric`. DataError when they are not whole.
    They say nothing of the data that they are of: nothing is checked of it but the number of samples."""
    values, ones = _read(f"{prefix}_sample_to_metric")
    distinct, singles = _read(f"{prefix}_index_to_metric")
    order, sizes = _read(f"{prefix}_index_to_sample")
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    if not (len(values) == len(ones) == len(order) and len(distinct) == len(singles) == len(sizes)) or not len(order):
        raise DataError(f"{prefix}: {len(values)} values of samples, {len(order)} samples in order: not one index")
    if not (distinct[1:] > distinct[:-1]).all():
        raise DataError(f"{prefix}_index_to_metric: its values do not ascend")
    for at in range(0, len(order), _CHUNK):
        _checked(prefix, at, order[at : at + _CHUNK + 1], values, distinct, offsets)
    manifest = Manifest(
        metric=prefix.name,
        corpus={"made by": "DeepSpeed"},
        samples=len(values),
        distinct=len(distinct),
        dtype=values.dtype.name,
        smallest=float(distinct[0]),
        largest=float(distinct[-1]),
    )
    return Index(manifest=manifest, values=values, order=order, distinct=distinct, offsets=offsets)


def _checked(
    prefix: Path, at: int, part: NDArray[Any], values: NDArray[Any], distinct: NDArray[Any], offsets: NDArray[np.int64]
) -> None:
    """That the files agree with one another, and that of equal values the smaller sample number comes first."""
    if part.max() >= len(values):
        raise DataError(f"{prefix}_index_to_sample: sample {part.max()} of {len(values)}")
    of = np.searchsorted(offsets, np.arange(at, at + len(part)), side="right") - 1
    if (values[part] != distinct[of]).any():
        raise DataError(f"{prefix}: a sample has one value in sample_to_metric and another one in index_to_metric")
    if ((part[1:] <= part[:-1]) & (of[1:] == of[:-1])).any():
        raise DataError(f"{prefix}_index_to_sample: samples of one value are not in ascending order")


def _groups(index: Index, scale: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct whole numbers, and where the samples of each begin in the order; one more is the end."""
    found, begins, last = [], [], None
    for at in range(0, len(index.distinct), _CHUNK):
        values = whole_numbers(np.asarray(index.distinct[at : at + _CHUNK]), scale)
        new = np.flatnonzero(np.diff(values, prepend=values[0] - 1 if last is None else last))
        found.append(values[new])
        begins.append(index.offsets[at + new])
        last = values[-1]
    return np.concatenate(found), np.append(np.concatenate(begins), len(index))


def _fit(smallest: int, largest: int) -> type[np.integer[Any]]:
    """The type that DeepSpeed takes for such numbers (its find_fit_int_dtype)."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64) if smallest >= 0 else (np.int8, np.int16, np.int32, np.int64)
    return next(k for k in kinds if np.iinfo(k).min <= smallest and largest <= np.iinfo(k).max)


def _write(path: str, dtype: type[np.integer[Any]], parts: Iterable[NDArray[Any]], sizes: NDArray[np.int32]) -> None:
    with Path(f"{path}.bin").open("wb") as file:
        file.writelines(part.astype(dtype).data for part in parts)
    code = next(code for code, known in _TYPES.items() if known is dtype)
    pointers = np.cumsum(sizes, dtype=np.int64) * np.dtype(dtype).itemsize
    with Path(f"{path}.idx").open("wb") as file:
        file.write(MMIDIDX.pack(MAGIC, 1, code, len(sizes), 2))
        file.write(sizes.data)
        file.write(np.concatenate([[0], pointers[:-1]]).astype(np.int64).data)
        file.write(np.array([0, len(sizes)], dtype=np.int64).data)


def _read(path: str) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The numbers, mapped, and how many belong together."""
    try:
        with Path(f"{path}.idx").open("rb") as file:
            version, code, count = mmididx_header(file, f"{path}.idx: not an index of DeepSpeed's")
            sizes = np.fromfile(file, dtype=np.int32, count=count)
        if version != 1 or code not in _TYPES or len(sizes) != count:
            raise DataError(f"{path}.idx: version {version}, type {code}, {len(sizes)} of {count} sizes: not read here")
        numbers = np.memmap(f"{path}.bin", dtype=_TYPES[code], mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    if len(numbers) != int(sizes.sum(dtype=np.int64)):
        raise DataError(f"{path}.bin: {len(numbers)} numbers are not the {int(sizes.sum(dtype=np.int64))} of its .idx")
    return numbers, sizes
