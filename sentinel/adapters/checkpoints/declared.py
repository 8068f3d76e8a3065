"""What a checkpoint says of itself about its parts: the number of ranks, the pieces, the index. Nothing is executed."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.adapters.checkpoints.archive import UnsoundError, pickle_of
from sentinel.adapters.checkpoints.layouts import DEEPSPEED, HUGGING_FACE, MEGATRON_LM, Layout, optimizer_shards
from sentinel.adapters.checkpoints.pickled import LARGEST_BYTES, Entry, PickleError, read_pickle
from sentinel.adapters.checkpoints.reading import Pieces, open_plain
from sentinel.adapters.checkpoints.walk import Contents, shown
from sentinel.vocabulary.numbers import json_too_large

_PIPELINE_RANKS = ("pipeline_model_parallel_size", "transformer_pipeline_model_parallel_size")
_LARGEST_METADATA_BYTES = 8 * LARGEST_BYTES
_MOST_RANKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was found in the checkpoint about the checkpoint."""

    problem: str | None = None  # what it declares and lacks, as a sentence
    ranks_known: bool = False  # it declares of how many ranks it is: no comparison with siblings is needed
    pieces: Pieces = field(default_factory=dict)


def declared(folder: Path, contents: Contents, layout: Layout) -> Declared:
    """Compares the files that are there with what the checkpoint declares about itself."""
    try:
        if layout is DEEPSPEED:
            return deepspeed_ranks(folder, contents.names)
        if layout is MEGATRON_LM:
            return _torch_dist(folder, contents) if ".metadata" in contents.names else _megatron_ranks(folder, contents)
        if layout is HUGGING_FACE:
            problem = _torn_json(folder, "trainer_state.json") or _unindexed(folder, contents)
            return Declared(problem=problem, ranks_known=True)
    except (UnsoundError, PickleError) as error:
        return Declared(problem=str(error))
    except OSError as error:
        return Declared(problem=f"{shown(Path(error.filename or 'it').name)} can't be read: {error.strerror}")
    return Declared()


def deepspeed_ranks(folder: Path, names: frozenset[str]) -> Declared:
    """DeepSpeed's model states hold dp_world_size, and under ZeRO an `optimizer` of None: the shards hold it."""
    models = sorted(name for name in names if name.endswith("mp_rank_00_model_states.pt") and "layer" not in name)
    values = _values(folder / models[0]) if models else {}
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
    values = _values(folder / first, anywhere=True) if first else {}
    tensor = values.get("tensor_model_parallel_size")
    pipeline = next((values[key] for key in _PIPELINE_RANKS if isinstance(values.get(key), int)), None)
    if not isinstance(tensor, int) or not isinstance(pipeline, int) or not 0 < tensor * pipeline <= _MOST_RANKS:
        return Declared()
    for t, p in ((t, p) for t in range(tensor) for p in range(pipeline)):
        name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "")
        if name not in contents.folders and not any(n.startswith(f"{name}_") for n in contents.folders):
            return Declared(problem=f"{name} is missing: it was saved by {tensor} x {pipeline} ranks", ranks_known=True)
    return Declared(ranks_known=True)


def _torch_dist(folder: Path, contents: Contents) -> Declared:
    """torch.distributed.checkpoint: .metadata says which bytes of which file are which piece."""
    if (torn := _torn_json(folder, "metadata.json")) is not None:
        return Declared(problem=torn)
    data = _content(folder / ".metadata", _LARGEST_METADATA_BYTES)
    try:
        pieces = _pieces(data)
    except PickleError as error:
        raise UnsoundError(f".metadata is not whole: {error}") from error
    sizes = {item.name: item.size_bytes for item in contents.files}
    for name, parts in sorted(pieces.items()):
        end = max(offset + size for offset, size in parts)
        if name not in sizes:
            return Declared(problem=f"{shown(name)} is missing: .metadata names it")
        if sizes[name] != end:
            return Declared(problem=f"{shown(name)} has {sizes[name]} bytes, and {end} by .metadata")
    if not pieces:
        return Declared(problem=".metadata names no file")
    return Declared(ranks_known=True, pieces=pieces)


def _pieces(data: bytes) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    name, offset = "", 0
    for entry in read_pickle(data):
        match entry:
            case Entry("relative_path", str(value)):
                name = value
            case Entry("offset", int(value)) if name and value >= 0:
                offset = value
            case Entry("length", int(value)) if name and value >= 0:
                found.setdefault(name, []).append((offset, value))
                name = ""
    return {name: sorted(parts) for name, parts in found.items()}


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


def _values(path: Path, *, anywhere: bool = False) -> dict[str, Any]:
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
