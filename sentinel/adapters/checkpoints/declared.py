"""What a checkpoint says of itself about its parts: plain values, JSON, torch DCP's pieces. Nothing is executed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.adapters.checkpoints.archive import UnsoundError, pickle_of
from sentinel.adapters.checkpoints.pickled import LARGEST_BYTES, Entry, PickleError, read_pickle
from sentinel.adapters.checkpoints.reading import Pieces, open_plain
from sentinel.adapters.checkpoints.walk import Contents
from sentinel.vocabulary.names import shown
from sentinel.vocabulary.numbers import json_too_large

_LARGEST_METADATA_BYTES = 8 * LARGEST_BYTES
MOST_RANKS = 1_000_000
_CLOCKS_S = 60.0  # by which the times of files that several hosts have written may be apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was found in the checkpoint about the checkpoint."""

    problem: str | None = None  # what it declares and lacks, as a sentence
    doubt: str | None = None  # why it may be a mixture of two saves, as a sentence
    ranks_known: bool = False  # it declares of how many ranks it is: a sibling of as many has the same shards
    parts_known: bool = False  # it declares all its parts: no comparison with siblings is needed
    pieces: Pieces = field(default_factory=dict)


def half_written(metadata_ns: int, youngest_ns: int) -> str | None:
    """Why a DCP folder may hold pieces of two saves, as a sentence: .metadata is written after all of them, and a save
    over an older one leaves the old .metadata until its end."""
    behind_s = (youngest_ns - metadata_ns) / 1e9
    if behind_s <= _CLOCKS_S:
        return None
    return (
        f".metadata is {behind_s:.0f} s older than a piece: a save over it is under way or was cut short, or it is a "
        "copy that did not keep the times (`touch` its .metadata if you know that)"
    )


def distributed_folders(contents: Contents) -> list[str]:
    """Paths, with a slash at the end, of what torch.distributed.checkpoint has written to; "" is the checkpoint."""
    pieces = (name for name in contents.names if name.endswith(".distcp") or name.rpartition("/")[2] == ".metadata")
    return sorted({"".join(name.rpartition("/")[:2]) for name in pieces})


def distributed(
    folder: Path, contents: Contents, beside: Callable[[Path, Contents, str, frozenset[str]], str | None]
) -> Declared:
    """torch.distributed.checkpoint: .metadata says which bytes of which file are which piece. OSError, UnsoundError.

    beside: what is missing beside the pieces, see `Layout.beside_pieces`.
    """
    doubt, pieces = None, dict[str, Sequence[tuple[int, int]]]()
    items = {item.name: item for item in contents.files}
    below_top = distributed_folders(contents)
    for below in below_top:
        if (written := items.get(f"{below}.metadata")) is None:
            return Declared(problem=f"{shown(below)}.metadata, which a save writes last, is missing")
        try:
            found, keys = _pieces(_content(folder / written.name, _LARGEST_METADATA_BYTES), below)
        except PickleError as error:
            raise UnsoundError(f"{shown(written.name)} is not whole: {error}") from error
        lacks = beside(folder, contents, below, keys)
        lacks = lacks or _other_pieces(found, {name: item.size_bytes for name, item in items.items()})
        if lacks is not None:
            return Declared(problem=lacks)
        youngest_ns = max((items[name].mtime_ns for name in found if name in items), default=0)
        doubt, pieces = doubt or half_written(written.mtime_ns, youngest_ns), pieces | found
    return Declared(doubt=doubt, parts_known=bool(below_top), pieces=pieces)


def _other_pieces(pieces: Pieces, sizes: Mapping[str, int]) -> str | None:
    for name, parts in sorted(pieces.items()):
        end = max(offset + size for offset, size in parts)
        if name not in sizes:
            return f"{shown(name)} is missing: .metadata names it"
        if sizes[name] != end:
            return f"{shown(name)} has {sizes[name]} bytes, and {end} by .metadata"
    return None if pieces else ".metadata names no file"


def _pieces(data: bytes, below: str) -> tuple[dict[str, Sequence[tuple[int, int]]], frozenset[str]]:
    """File's path -> its pieces; and those of the saved keys that tell what saved it."""
    found: dict[str, list[tuple[int, int]]] = {}
    keys = set[str]()
    name, offset = "", 0
    for entry in read_pickle(data):
        match entry:
            case Entry("relative_path", str(value)):
                name = f"{below}{value}"
            case Entry("offset", int(value)) if name and value >= 0:
                offset = value
            case Entry("length", int(value)) if name and value >= 0:
                found.setdefault(name, []).append((offset, value))
                name = ""
            case Entry(str(key)) if key == "args" or key.startswith("common_state"):
                keys.add(key)
    return {name: sorted(parts) for name, parts in found.items()}, frozenset(keys)


def torn_json(folder: Path, name: str) -> str | None:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json_in(folder / name), dict):
            return None
    return f"{name} is not a JSON object: writing it was cut short"


def plain_values(path: Path, *, anywhere: bool = False) -> dict[str, Any]:
    """Plain keys and values of a torch file's dictionary, or of any dictionary in it; {} where it can't be read."""
    descriptor = open_plain(path)
    try:
        data = pickle_of(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    entries = (entry for entry in read_pickle(data or b"") if isinstance(entry, Entry) and isinstance(entry.key, str))
    try:
        return {entry.key: entry.value for entry in entries if anywhere or entry.top}
    except PickleError:
        return {}


def json_in(path: Path) -> Any:
    """OSError, UnsoundError, ValueError, RecursionError."""
    data = _content(path, LARGEST_BYTES)
    if (why := json_too_large(data)) is not None:
        raise UnsoundError(f"{shown(path.name)} {why}")
    return json.loads(data)


def _content(path: Path, limit: int) -> bytes:
    with os.fdopen(open_plain(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise UnsoundError(f"{shown(path.name)} has more than {limit} bytes")
        return file.read()
