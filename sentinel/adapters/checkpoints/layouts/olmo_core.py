"""OLMo-core: its folder is renamed from stepN-tmp, and .metadata.json is written after that."""

from __future__ import annotations

import re
from pathlib import Path

from sentinel.adapters.checkpoints.layouts.layout import PIECES, STEP, Layout, end_of, first_missing, matches

_TRAIN_RANK = re.compile(r"train/rank([0-9]{1,6})\.pt")
_PIECE = re.compile(r"model_and_optim/__([0-9]{1,6})_[0-9]{1,6}\.distcp")


class OlmoCoreLayout(Layout):
    title = "OLMo-core"
    tag = re.compile(f"step{STEP}")
    shard = re.compile(f"train/rank[0-9]+\\.pt|{PIECES.pattern}", re.DOTALL)
    below = ("train/rank0.pt", "model_and_optim/.metadata")

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        lacks = first_missing(("train", "model_and_optim", ".metadata.json"), names)
        if lacks is not None or not deep:
            return lacks
        ranks = end_of(int(m[1]) for m in matches(_TRAIN_RANK, names))
        pieces = end_of(int(m[1]) for m in matches(_PIECE, names))  # a rank that has written pieces has a state, too
        return first_missing((f"train/rank{rank}.pt" for rank in range(max(1, ranks, pieces))), names)

    def takes(self, path: Path) -> bool:
        return (path / ".metadata.json").exists()
