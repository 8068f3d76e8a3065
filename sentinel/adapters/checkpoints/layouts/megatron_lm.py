"""Megatron-LM: a folder per model-parallel rank, or torch's distributed checkpoint (torch_dist and torch_dcp)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from sentinel.adapters.checkpoints.declared import MOST_RANKS, Declared, distributed_folders, plain_values, torn_json
from sentinel.adapters.checkpoints.layouts.layout import (
    STEP,
    Layout,
    Named,
    Tracker,
    end_of,
    first_missing,
    is_number,
    matches,
    missing_of_torch,
)
from sentinel.adapters.checkpoints.walk import Contents

NUMBER = Tracker("latest_checkpointed_iteration.txt", by_step=True)
RELEASE = "release"  # the name for weights converted from elsewhere: the state before the first update
_RANK = re.compile(r"mp_rank_([0-9]{2,6})(?:_([0-9]{3,6}))?(?:_([0-9]{3,6}))?")
_PIPELINE_RANKS = ("pipeline_model_parallel_size", "transformer_pipeline_model_parallel_size")


class MegatronLMLayout(Layout):
    """Which of the small files beside the pieces belong to a distributed checkpoint, its .metadata tells."""

    title = "Megatron-LM"
    tag = re.compile(f"iter_{STEP}|{RELEASE}")
    shard = re.compile(r"mp_rank_[0-9_]+/[^/]*\.pt|[^/]*\.distcp|common\.pt", re.DOTALL)
    trackers = (NUMBER,)
    resumes_newest = False

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        if ".metadata" in names or any(name.endswith(".distcp") for name in names):
            return missing_of_torch(names)
        ranks = {m[0]: tuple(int(part) for part in m.groups() if part) for m in matches(_RANK, names)}
        if not ranks:
            return "it has neither mp_rank_* folders nor a .metadata"
        sizes = [end_of(numbers) for numbers in zip(*ranks.values(), strict=False)]
        there, widths = set(ranks.values()), (2, 3, 3)
        for rank in product(*(range(size) for size in sizes)):
            if rank not in there:
                return f"mp_rank_{'_'.join(f'{part:0{w}d}' for part, w in zip(rank, widths, strict=False))} is missing"
        if not deep:
            return None
        kinds = {"model_optim_rng.pt"} | {name.partition("/")[2] for name in names if name.partition("/")[0] in ranks}
        asked_of_each = sorted(kind for kind in kinds if kind.endswith(".pt") and "/" not in kind)
        return first_missing((f"{rank}/{kind}" for rank in sorted(ranks) for kind in asked_of_each), names)

    def declared(self, folder: Path, contents: Contents) -> Declared:
        return super().declared(folder, contents) if distributed_folders(contents) else _ranks(folder, contents)

    def beside_pieces(self, folder: Path, contents: Contents, below: str, keys: frozenset[str]) -> str | None:
        return missing_of_megatron_core(folder, contents, below, keys)

    def named_by(self, texts: Mapping[str, str], listed: Sequence[Named]) -> str | None:
        """Megatron-DeepSpeed's as well: its number stands for DeepSpeed's own folder of that step."""
        text = texts.get(NUMBER.name)
        if text is None or not is_number(text):
            return text
        own = (n for n in listed if NUMBER in n.layout.trackers and not n.layout.is_conversion)
        of_step = [named for named in own if NUMBER.stands_for(text, named)]
        return of_step[-1].tag if of_step else f"iter_{int(text):07d}"

    def texts_for(self, folder: Path, tag: str, global_step: int) -> dict[str, str]:
        return {NUMBER.name: RELEASE if tag == RELEASE else str(global_step)}


def missing_of_megatron_core(folder: Path, contents: Contents, below: str, keys: frozenset[str]) -> str | None:
    """Which small file is missing beside the pieces: torch_dcp keeps its arguments under "args" and has none;
    torch_dist has metadata.json, written last, and common.pt, unless it is so new that "common_state" is a piece."""
    metadata = f"{below}metadata.json"
    if metadata not in contents.names and "args" in keys:
        return None
    common = () if any(key.startswith("common_state") for key in keys) else (f"{below}common.pt",)
    return first_missing((metadata, *common), contents.names) or torn_json(folder, metadata)


def _ranks(folder: Path, contents: Contents) -> Declared:
    """Every rank's file keeps the arguments: tensor and pipeline ranks make the folders."""
    first = next((item.name for item in contents.files if item.name.endswith("/model_optim_rng.pt")), None)
    values = plain_values(folder / first, anywhere=True) if first else {}
    tensor = values.get("tensor_model_parallel_size")
    pipeline = next((values[key] for key in _PIPELINE_RANKS if isinstance(values.get(key), int)), None)
    if not isinstance(tensor, int) or not isinstance(pipeline, int) or not 0 < tensor * pipeline <= MOST_RANKS:
        return Declared()
    for t, p in ((t, p) for t in range(tensor) for p in range(pipeline)):
        name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pipeline > 1 else "")
        if name not in contents.folders and not any(n.startswith(f"{name}_") for n in contents.folders):
            return Declared(problem=f"{name} is missing: it was saved by {tensor} x {pipeline} ranks")
    return Declared(parts_known=True)
