"""An index: how difficult each sample is, and the samples in order of difficulty. Both are memory-mapped.

INDEX/manifest.json   what was measured, of which data; written last
INDEX/values.npy      (samples,) sample → value
INDEX/samples.npy     (samples,) sample numbers by value, then by number: value → samples
INDEX/distinct.npy    (distinct,) the values that occur, ascending
INDEX/offsets.npy     (distinct + 1,) samples[offsets[i]:offsets[i + 1]] are those whose value is distinct[i]
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentinel.vocabulary.errors import DataError

MANIFEST = "manifest.json"
FILES = ("values", "samples", "distinct", "offsets")
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an index is of."""

    metric: str  # Its name, as `analyze --metric` takes it
    # What else its values depend on: the padding token, the vocabulary, the coefficient of the length.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    corpus: Mapping[str, Any]  # What tells the data from other data: Rows.fingerprint
    samples: int
    distinct: int
    dtype: str  # numpy's name of the values' type
    smallest: float
    largest: float
    schema: int = _SCHEMA

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Of that file. DataError when it is no manifest."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.get("schema") != _SCHEMA:
                raise DataError(f"{path}: schema {data.get('schema')!r} is not read here ({_SCHEMA}); analyze again")
            return cls(**data)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}: an index is made by `sentinel-data analyze`") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: not the manifest of an index: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One metric of one data set."""

    manifest: Manifest
    values: NDArray[Any]  # (samples,) value of each sample
    # (samples,) sample numbers, the least difficult first; of equal values the smaller number first.
    order: NDArray[Any]
    distinct: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def name(self) -> str:
        return self.manifest.metric

    def __len__(self) -> int:
        return self.manifest.samples

    @classmethod
    def load(cls, folder: Path, corpus: Mapping[str, Any] | None = None) -> Index:
        """The index in that folder; of the data that `corpus` (Rows.fingerprint) tells. DataError when it is none."""
        manifest = Manifest.load(folder / MANIFEST)
        if corpus is not None and dict(corpus) != dict(manifest.corpus):
            names = sorted({*manifest.corpus, *corpus})
            pairs = ((name, manifest.corpus.get(name), corpus.get(name)) for name in names)
            name, there, here = next(pair for pair in pairs if pair[1] != pair[2])
            other = f"the index belongs to other data ({name} {there!r} there, {here!r} here)"
            raise DataError(f"{folder}: {other}; analyze this data, or use that")
        parts = [mapped_array(folder / f"{name}.npy") for name in FILES]
        lengths = (manifest.samples, manifest.samples, manifest.distinct, manifest.distinct + 1)
        for name, part, length in zip(FILES, parts, lengths, strict=True):
            if part.shape != (length,):
                raise DataError(f"{folder / name}.npy: {part.shape} is not ({length},), as {MANIFEST} says")
        if parts[0].dtype != np.dtype(manifest.dtype):
            raise DataError(f"{folder}/values.npy: {parts[0].dtype} is not {manifest.dtype}, as {MANIFEST} says")
        return cls(manifest=manifest, values=parts[0], order=parts[1], distinct=parts[2], offsets=parts[3])

    def up_to_value(self, difficulty: float) -> int:
        """How many samples have at most this value; they are the first of `order`. nan is none."""
        if difficulty != difficulty:
            return 0
        return int(self.offsets[bisect_right(self.distinct, difficulty, key=float)])

    def up_to_percentile(self, percent: float) -> int:
        """How many samples are the lowest `percent` %, rounded down, and at least one; all of them from 100 on."""
        if percent >= 100:
            return len(self)
        return max(1, int(len(self) * max(percent, 0.0) / 100)) if percent == percent else 0


def mapped_array(path: Path) -> NDArray[Any]:
    """A .npy file, memory-mapped. DataError where it is not there or not complete."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: not a whole array of numpy's: {error}") from error
    return found
