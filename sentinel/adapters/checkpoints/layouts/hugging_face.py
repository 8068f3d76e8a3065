"""transformers' Trainer: weights, trainer_state.json, an optimizer, and the generators' states of every rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sentinel.adapters.checkpoints.declared import Declared, json_in, torn_json
from sentinel.adapters.checkpoints.layouts.deepspeed import missing_of_deepspeed
from sentinel.adapters.checkpoints.layouts.layout import STEP, Layout, end_of, first_missing, inside, matches
from sentinel.adapters.checkpoints.walk import Contents
from sentinel.vocabulary.names import shown

_STATE = "trainer_state.json"
_NUMBERED = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.(safetensors|bin)")
_RNG = re.compile(r"rng_state_([0-9]{1,6})\.pth")
_WEIGHTS = re.compile(
    r"(?:model|pytorch_model|adapter_model)(?:-[0-9]{5}-of-[0-9]{5})?\.(?:safetensors|bin)"
    r"|pytorch_model_fsdp(?:_[0-9]{1,3}|\.bin)"
)


class HuggingFaceLayout(Layout):
    title = "Hugging Face"
    tag = re.compile(f"checkpoint-{STEP}")
    shard = re.compile(r"(?:model|pytorch_model|optimizer|adapter_model)[^/]*\.(?:safetensors|bin|pt)", re.DOTALL)

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        inner = sorted(name for name in names if re.fullmatch("global_step[0-9]{1,15}", name))  # saved by DeepSpeed
        if not inner and not any(_WEIGHTS.fullmatch(name) for name in names):
            return "it has no model*.safetensors or pytorch_model*.bin"
        if (lacks := first_missing(_expected(names, bool(inner)), names)) is not None or not deep or not inner:
            return lacks
        lacks = missing_of_deepspeed(inside(inner[-1], names))
        return None if lacks is None else f"in {inner[-1]}: {lacks}"

    def declared(self, folder: Path, contents: Contents) -> Declared:
        if (problem := torn_json(folder, _STATE) or _unindexed(folder, contents)) is not None:
            return Declared(problem=problem)
        return replace(super().declared(folder, contents), parts_known=True)


def _expected(names: frozenset[str], optimizer_elsewhere: bool) -> Iterator[str]:
    for stem, count, suffix in sorted({(m[1], m[3], m[4]) for m in matches(_NUMBERED, names)}):
        yield from (f"{stem}-{number:05d}-of-{count}.{suffix}" for number in range(1, int(count) + 1))
    yield _STATE
    if not optimizer_elsewhere and "optimizer.bin" not in names and not any(n.startswith("optimizer_") for n in names):
        yield "optimizer.pt"
    yield from (f"rng_state_{rank}.pth" for rank in range(end_of(int(m[1]) for m in matches(_RNG, names))))


def _unindexed(folder: Path, contents: Contents) -> str | None:
    """The first file that an index names and that is not there."""
    for index in sorted(name for name in contents.names if name.endswith(".index.json") and "/" not in name):
        try:
            weights = json_in(folder / index)["weight_map"]
            named = sorted({str(name) for name in weights.values()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{shown(index)} is not an index of weights"
        for name in named:
            if name not in contents.names:
                return f"{shown(name)} is missing: {shown(index)} names it"
    return None
