"""Composer: a file for each rank that saves (rank 0 alone, unless sharded), or torch.distributed.checkpoint."""

from __future__ import annotations

import re

from sentinel.adapters.checkpoints.layouts.layout import (
    PIECES,
    STEP,
    Layout,
    end_of,
    first_missing,
    matches,
    missing_of_torch,
)

_RANK = re.compile(r".*-rank([0-9]{1,6})\.pt")


class ComposerLayout(Layout):
    title = "Composer"
    tag = re.compile(rf"(?P<tag>ep[0-9]{{1,9}}-ba{STEP})(?:-rank[0-9]{{1,6}}\.pt)?")
    shard = re.compile(rf"{PIECES.pattern}|.*\.pt", re.DOTALL)
    links = re.compile(r"latest(-rank[0-9]{1,6}\.pt)")

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        ranks = {int(m[1]): m[0] for m in matches(_RANK, names)}
        if not ranks:
            return missing_of_torch(names)
        stem = next(iter(ranks.values())).rpartition("-rank")[0]
        return first_missing((f"{stem}-rank{rank}.pt" for rank in range(end_of(ranks))), names)
