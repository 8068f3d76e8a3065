"""What a checkpoint says of itself about its parts: the number of ranks, the pieces, the index. Nothing is executed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.adapters.checkpoints.archive import UnsoundError, pickle_of
from sentinel.adapters.checkpoints.layouts import DEEPSPEED, HUGGING_FACE, MEGATRON_LM, Layout, optimizer_shards
from sentinel.adapters.checkpoints.pickled import LARGEST_BYTES, Entry, PickleError, read_pickle
from sentinel.adapters.checkpoints.reading import Pieces, open_plain
from sentinel.adapters.checkpoints.walk import Contents
from sentinel.vocabulary.names import shown
from sentinel.vocabulary.numbers import json_too_large

_PIPELINE_RANKS = ("pipeline_model_parallel_size", "transformer_pipeline_model_parallel_size")
_LARGEST_METADATA_BYTES = 8 * LARGEST_BYTES
_MOST_RANKS = 1_000_000
_CLOCKS_S = 60.0  # by which the times of files that several hosts have written may be apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was found in the checkpoint about the checkpoint."""

    problem: str | None = None  # what it declares and lacks, as a sentence
    doubt: str | None = None  # why it may be a mixture of two saves, as a sentence
    ranks_known: bool = False  # it declares of how many ranks it is: no comparison with siblings is needed
    pieces: Pieces = field(default_factory=dict)


def declared(folder: Path, contents: Contents, layout: Layout) -> Declared:
    """Compares the files that are there with what the checkpoint declares about itself."""
    try:
        if layout is DEEPSPEED:
            return deepspeed_ranks(folder, contents.names)
        if layout is HUGGING_FACE:
            problem = _torn_json(folder, "trainer_state.json") or _unindexed(folder, contents)
            if problem is not None:
                return Declared(problem=problem, ranks_known=True)
        of_torch = [_distributed(folder, contents, below, layout) for below in _distributed_folders(contents)]
        if (wrong := next((found for found in of_torch if found.problem), None)) is not None:
            return wrong
        if layout is MEGATRON_LM and not of_torch:
            return _megatron_ranks(folder, contents)
        return Declared(
            doubt=next((found.doubt for found in of_torch if found.doubt), None),
            ranks_known=bool(of_torch) or layout is HUGGING_FACE,
            pieces={name: parts for found in of_torch for name, parts in found.pieces.items()},
        )
    except (UnsoundError, PickleError) as error:
        return Declared(problem=str(error))
    except OSError as error:
        return Declared(problem=f"{shown(Path(error.filename or 'it').name)} can't be read: {error.strerror}")


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


def deepspeed_ranks(folder: Path, names: frozenset[str]) -> Declared:
    """DeepSpeed's model states hold dp_world_size, and under ZeRO an `optimizer` of None: the shards hold it."""
    models = sorted(name for name in names if name.endswith("mp_rank_00_model_states.pt") and "layer" not in name)
    values = plain_values(folder / models[0]) if models else {}
    ranks = values.get("dp_world_size")
    if not isinstance(ranks, int) or not 0 < ranks <= _MOST_RANKS:
        return Declared()
    shards = optimizer_shards(names)
    if not shards:
        gone = values.get("optimizer", "inside") is None
        return Declared(problem="its optimizer shards are missing, all of them" if gone else None, ranks_known=True)
    there = {(int(m[1]), int(m[2])) for m in shards}
    prefix = "bf16_" if shards[0][0].startswith("bf16_") else ""
    for data, model in ((d, m) for m in sorted({m for _, m in there}) for d in range(ranks)):
        if (data, model) not in there:
            name = f"{prefix}zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt"
            lacks = f"it has {len(shards)} optimizer shards for {ranks} data-parallel ranks: {name} is missing"
            return Declared(problem=lacks, ranks_known=True)
    return Declared(ranks_known=True)


def _megatron_ranks(folder: Path, contents: Contents) -> Declared:
    """Megatron-LM keeps its arguments in every rank's file: tensor and pipeline ranks make the folders."""
    first = next((item.name for item in contents.files if item.name.endswith("/model_optim_rng.pt")), None)
    values = plain_values(folder / first, anywhere=True) if first else {}
    tensor = values.get("tensor_model_parallel_size")
    pipeline = next((values[key] for key in _PIPELINE_RANKS if isinstance(values.get(key), int)), None)
    if not isinstance(tensor, int) or not isinstance(pipeline, int) or not 0 < tensor * pipeline <= _MOST_RANKS:
        return Declared()
    for t, p in ((t, p) for t in range(tensor) for p in range(pipeline)):
        name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "")
        if name not in contents.folders and not any(n.startswith(f"{name}_") for n in contents.folders):
            return Declared(problem=f"{name} is missing: it was saved by {tensor} x {pipeline} ranks", ranks_known=True)
    return Declared(ranks_known=True)


def _distributed_folders(contents: Contents) -> list[str]:
    """Paths, with a slash at the end, of what torch.distributed.checkpoint has written to; "" is the checkpoint."""
    pieces = (name for name in contents.names if name.endswith(".distcp") or name.rpartition("/")[2] == ".metadata")
    return sorted({"".join(name.rpartition("/")[:2]) for name in pieces})


def _distributed(folder: Path, contents: Contents, below: str, layout: Layout) -> Declared:
    """torch.distributed.checkpoint: .metadata says which bytes of which file are which piece."""
    items = {item.name: item for item in contents.files}
    if (written := items.get(f"{below}.metadata")) is None:
        return Declared(problem=f"{shown(below)}.metadata, which a save writes last, is missing")
    data = _content(folder / written.name, _LARGEST_METADATA_BYTES)
    try:
        pieces, keys = _pieces(data, below)
    except PickleError as error:
        raise UnsoundError(f"{shown(written.name)} is not whole: {error}") from error
    lacks = _of_megatron(folder, contents, keys) if layout is MEGATRON_LM else None
    lacks = lacks or _other_pieces(pieces, {name: item.size_bytes for name, item in items.items()})
    youngest_ns = max((items[name].mtime_ns for name in pieces if name in items), default=0)
    doubt = half_written(written.mtime_ns, youngest_ns)
    return Declared(problem=lacks, doubt=doubt, ranks_known=True, pieces=pieces)


def _of_megatron(folder: Path, contents: Contents, keys: frozenset[str]) -> str | None:
    """Which small files belong to it: torch_dcp keeps its arguments under "args" and has none; torch_dist has
    metadata.json, written last, and common.pt, unless it is so new that "common_state" is among the pieces."""
    if "metadata.json" not in contents.names and "args" in keys:
        return None
    asked = ["metadata.json"] if any(key.startswith("common_state") for key in keys) else ["metadata.json", "common.pt"]
    lacks = next((f"{name} is missing" for name in asked if name not in contents.names), None)
    return lacks or _torn_json(folder, "metadata.json")


def _other_pieces(pieces: Pieces, sizes: Mapping[str, int]) -> str | None:
    for name, parts in sorted(pieces.items()):
        end = max(offset + size for offset, size in parts)
        if name not in sizes:
            return f"{shown(name)} is missing: .metadata names it"
        if sizes[name] != end:
            return f"{shown(name)} has {sizes[name]} bytes, and {end} by .metadata"
    return None if pieces else ".metadata names no file"


def _pieces(data: bytes, below: str) -> tuple[Pieces, frozenset[str]]:
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


def _torn_json(folder: Path, name: str) -> str | None:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(_json(folder / name), dict):
            return None
    return f"{name} is not a JSON object: writing it was cut short"


def _unindexed(folder: Path, contents: Contents) -> str | None:
    """The first file that a Hugging Face index names and that is not there."""
    for index in sorted(name for name in contents.names if name.endswith(".index.json") and "/" not in name):
        try:
            weights = _json(folder / index)["weight_map"]
            named = sorted({str(name) for name in weights.values()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{shown(index)} is not an index of weights"
        for name in named:
            if name not in contents.names:
                return f"{shown(name)} is missing: {shown(index)} names it"
    return None


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


def _json(path: Path) -> Any:
    data = _content(path, LARGEST_BYTES)
    if (why := json_too_large(data)) is not None:
        raise UnsoundError(f"{shown(path.name)} {why}")
    return json.loads(data)


def _content(path: Path, limit: int) -> bytes:
    with os.fdopen(open_plain(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise UnsoundError(f"{shown(path.name)} has more than {limit} bytes")
        return file.read()
