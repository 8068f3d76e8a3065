"""Samples in order of their values, by external merge, in memory that does not grow with the data. Runs of a fixed
number of samples are sorted and written. Evenly spaced values of all runs give the bounds: between two bounds lies a
short piece of every run, and all of these pieces together fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

RUN_SAMPLES = 1 << 20  # What is sorted at once: some 40 MB with all that a sort needs beside it


class ArrayFile:
    """A one-dimensional .npy that is written piece by piece; its length is known when it is closed."""

    def __init__(self, path: Path, dtype: np.dtype[Any] | type) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._dtype = np.dtype(dtype)
        self.length = 0
        self._begin()

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self.length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._begin()
        self._file.close()

    def _begin(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)  # leaves room for a length that grows


class Sorted:
    """The samples in order, and the distinct values with their offsets: the three files of value → samples."""

    def __init__(self, folder: Path, values: np.dtype[Any], samples: int) -> None:
        self._samples = ArrayFile(folder / "samples.npy", np.uint32 if samples <= 1 << 32 else np.int64)
        self._distinct = ArrayFile(folder / "distinct.npy", values)
        self._offsets = ArrayFile(folder / "offsets.npy", np.int64)
        self._last: NDArray[Any] = np.zeros(0, dtype=values)

    def append(self, values: NDArray[Any], samples: NDArray[Any]) -> None:
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        if not np.array_equal(values[:1], self._last):
            changes = np.concatenate([[0], changes])
        self._distinct.append(values[changes])
        self._offsets.append(changes + self._samples.length)
        self._samples.append(samples)
        self._last = values[-1:].copy()

    def close(self) -> int:
        """How many distinct values there are."""
        self._offsets.append(np.array([self._samples.length]))
        for file in (self._samples, self._distinct, self._offsets):
            file.close()
        return self._distinct.length


def sort_values(values: Path, folder: Path, run_samples: int = RUN_SAMPLES) -> int:
    """Makes the files of `Sorted` out of values.npy; how many distinct values there are. Scratch files stay behind."""
    mapped = np.load(values, mmap_mode="r")
    count, dtype, header_bytes = len(mapped), mapped.dtype, mapped.offset
    del mapped
    out = Sorted(folder, dtype, count)
    if count:
        for part in _Runs(values, header_bytes, folder, count, dtype, run_samples).merged():
            out.append(*part)
    return out.close()


class _Runs:
    """Sorted runs, end to end in one file of values and one of sample numbers."""

    def __init__(
        self, values: Path, header_bytes: int, folder: Path, count: int, dtype: np.dtype[Any], each: int
    ) -> None:
        self._paths = (folder / "runs.values", folder / "runs.samples")
        self._dtypes = (dtype, np.dtype(np.int64))
        self._begins = list(range(0, count, each))
        self._count, self._each = count, each
        runs = len(self._begins)
        spacing = max(1, each // (2 * runs))
        kept = []
        with self._paths[0].open("wb") as run_values, self._paths[1].open("wb") as run_samples:
            for begin in self._begins:
                part = np.fromfile(values, dtype=dtype, count=each, offset=header_bytes + begin * dtype.itemsize)
                order = np.argsort(part, kind="stable")
                part = part[order]
                kept.append(part[spacing - 1 :: spacing].copy())  # a view would keep the whole run
                run_values.write(part.data)
                run_samples.write((order + begin).data)
        # From one bound to the next there are as many kept values as runs. Each stands for a spacing of samples, and of
        # each run less than a spacing comes on top: `each` samples at most, those whose value is the bound aside.
        self._bounds = np.unique(np.sort(np.concatenate(kept))[runs - 1 :: runs])

    def merged(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Values and sample numbers, in order, some at a time."""
        begins = self._begins
        ends = [min(begin + self._each, self._count) for begin in begins]
        for bound in self._bounds:
            to = self._upto(begins, ends, bound, "right")
            if sum(to) - sum(begins) <= self._each:
                yield from self._together(begins, to)
            else:  # one value that a good part of the data has: those below it, then it alone
                below = self._upto(begins, ends, bound, "left")
                yield from self._together(begins, below)
                yield from self._one_value(below, to)
            begins = to
        yield from self._together(begins, ends)

    def _upto(
        self, begins: Sequence[int], ends: Sequence[int], limit: Any, side: Literal["left", "right"]
    ) -> list[int]:
        found = []
        for begin, end in zip(begins, ends, strict=True):
            left = end - begin  # mapped run by run, and let go of: a map keeps far more in memory than is looked at
            run = (
                np.memmap(self._paths[0], self._dtypes[0], "r", begin * self._dtypes[0].itemsize, left) if left else ()
            )
            found.append(begin + int(np.searchsorted(run, limit, side)))
        return found

    def _read(self, begin: int, end: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        values, samples = (
            np.fromfile(path, dtype=dtype, count=end - begin, offset=begin * dtype.itemsize)
            for path, dtype in zip(self._paths, self._dtypes, strict=True)
        )
        return values, samples

    def _together(self, begins: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        parts = [self._read(b, e) for b, e in zip(begins, ends, strict=True) if b < e]
        if parts:
            values = np.concatenate([part[0] for part in parts])
            samples = np.concatenate([part[1] for part in parts])
            order = np.argsort(values, kind="stable")  # equal values stay as the runs have them: by sample number
            yield values[order], samples[order]

    def _one_value(
        self, begins: Sequence[int], ends: Sequence[int]
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        for begin, end in zip(begins, ends, strict=True):
            for at in range(begin, end, self._each):
                yield self._read(at, min(at + self._each, end))
