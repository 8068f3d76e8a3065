"""TorchTitan, and others who save by torch.distributed.checkpoint alone."""

from __future__ import annotations

import re
from pathlib import Path

from sentinel.adapters.checkpoints.layouts.layout import PIECES, STEP, Layout, missing_of_torch


class TorchDcpLayout(Layout):
    title = "torch DCP"
    tag = re.compile(f"step[-_]{STEP}")
    shard = PIECES

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        return missing_of_torch(names)

    def takes(self, path: Path) -> bool:
        return (path / ".metadata").exists()
