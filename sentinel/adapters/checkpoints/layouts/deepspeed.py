"""DeepSpeed: ZeRO stages 0 to 3, Megatron-DeepSpeed's tensor x pipeline x data shards, and universal checkpoints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sentinel.adapters.checkpoints.declared import MOST_RANKS, Declared, plain_values
from sentinel.adapters.checkpoints.layouts.layout import STEP, Layout, Tracker, end_of, first_missing, matches
from sentinel.adapters.checkpoints.layouts.megatron_lm import NUMBER
from sentinel.adapters.checkpoints.walk import Contents

_LATEST, _CONVERTED = Tracker("latest"), Tracker("latest_universal")
_OPTIMIZER_SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_optim_states\.pt")
_MODEL_SHARD = re.compile(r"mp_rank_([0-9]{1,6})_model_states\.pt")
_PARTITIONED_MODEL_SHARD = re.compile(r"zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_model_states\.pt")
_LAYER = re.compile(r"layer_([0-9]{1,6})-model_([0-9]{1,6})-model_states\.pt")


class DeepSpeedLayout(Layout):
    title = "DeepSpeed"
    tag = re.compile(f"global_step{STEP}")
    shard = re.compile(r"[^/]*(?:model|optim)_states\.pt", re.DOTALL)
    trackers = (_LATEST, NUMBER, _CONVERTED)
    resumes_newest = False

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        return missing_of_deepspeed(names)

    def shards_of_ranks(self, names: Iterable[str]) -> int:
        return sum(1 for _ in matches(_OPTIMIZER_SHARD, names))

    def declared_ranks(self, folder: Path, names: frozenset[str]) -> Declared:
        """Model states hold dp_world_size, and under ZeRO an `optimizer` of None: the shards hold it."""
        models = sorted(name for name in names if name.endswith("mp_rank_00_model_states.pt") and "layer" not in name)
        values = plain_values(folder / models[0]) if models else {}
        ranks = values.get("dp_world_size")
        if not isinstance(ranks, int) or not 0 < ranks <= MOST_RANKS:
            return Declared()
        shards = list(matches(_OPTIMIZER_SHARD, names))
        if not shards:
            gone = values.get("optimizer", "inside") is None
            return Declared(problem="its optimizer shards are missing, all of them" if gone else None, ranks_known=True)
        there = {(int(m[1]), int(m[2])) for m in shards}
        prefix = "bf16_" if shards[0][0].startswith("bf16_") else ""
        for data, model in ((d, m) for m in sorted({m for _, m in there}) for d in range(ranks)):
            if (data, model) not in there:
                name = f"{prefix}zero_pp_rank_{data}_mp_rank_{model:02d}_optim_states.pt"
                lacks = f"it has {len(shards)} optimizer shards for {ranks} data-parallel ranks: {name} is missing"
                return Declared(problem=lacks)
        return Declared(ranks_known=True)

    def declared(self, folder: Path, contents: Contents) -> Declared:
        return self.declared_ranks(folder, contents.names)

    def texts_for(self, folder: Path, tag: str, global_step: int) -> dict[str, str]:
        converted = f"{tag.removesuffix('_universal')}_universal"
        texts = {_LATEST.name: tag, NUMBER.name: str(global_step), _CONVERTED.name: converted}
        return texts if (folder / converted).is_dir() else {k: v for k, v in texts.items() if k != _CONVERTED.name}


class UniversalLayout(DeepSpeedLayout):
    """A conversion for other numbers of ranks: zero/PARAMETER/fp32.pt, exp_avg.pt, …"""

    title = "DeepSpeed, universal"
    tag = re.compile(f"global_step{STEP}_universal")
    shard = re.compile(r".*\.pt", re.DOTALL)
    is_conversion = True

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        if "zero" not in names:
            return "the folder zero is missing"
        if not deep:
            return None
        folders: dict[str, set[str]] = {}
        for name in names:
            parts = name.split("/")
            if parts[0] == "zero" and len(parts) == 3:
                folders.setdefault(parts[1], set()).add(parts[2])
        if not folders:
            return "the folder zero holds no parameter"
        often = Counter(kind for kinds in folders.values() for kind in kinds)
        asked = {"fp32.pt"} | {kind for kind, count in often.items() if 2 * count >= len(folders)}
        return first_missing((f"zero/{folder}/{kind}" for folder in sorted(folders) for kind in sorted(asked)), names)

    def unused(self, texts: Mapping[str, str]) -> str | None:
        if self.tag.fullmatch(texts.get(_LATEST.name, "")):
            return None
        return "it is a universal checkpoint, and `latest` names none: the run resumes from others"

    def declared(self, folder: Path, contents: Contents) -> Declared:
        return Declared(parts_known=True)


def missing_of_deepspeed(names: frozenset[str]) -> str | None:
    if not any(_MODEL_SHARD.fullmatch(name) or _PARTITIONED_MODEL_SHARD.fullmatch(name) for name in names):
        return "it has no *model_states.pt"
    return first_missing(_grid(names), names)


def _grid(names: frozenset[str]) -> Iterator[str]:
    """What the highest ranks that are there ask for. Lazy: a name with a rank of 999999 must cost nothing."""
    models = {int(m[1]) for m in matches(_MODEL_SHARD, names)}
    partitioned = {(int(m[1]), int(m[2])) for m in matches(_PARTITIONED_MODEL_SHARD, names)}
    optimizer = {(int(m[1]), int(m[2])): m[0] for m in matches(_OPTIMIZER_SHARD, names)}
    layers = {(int(m[1]), int(m[2])) for m in matches(_LAYER, names)}
    prefix = "bf16_" if any(name.startswith("bf16_") for name in optimizer.values()) else ""
    model_ranks = range(end_of(models | {m for _, m in partitioned} | {m for _, m in optimizer}))
    if models:
        yield from (f"mp_rank_{m:02d}_model_states.pt" for m in model_ranks)
    for data in range(end_of({d for d, _ in optimizer} | {d for d, _ in partitioned})):
        for model in model_ranks:
            where = f"zero_pp_rank_{data}_mp_rank_{model:02d}"
            if partitioned:
                yield f"{where}_model_states.pt"
            if optimizer:
                yield f"{prefix}{where}_optim_states.pt"
    for layer in sorted({number for number, _ in layers}):
        yield from (f"layer_{layer:02d}-model_{m:02d}-model_states.pt" for m in range(end_of({m for _, m in layers})))
