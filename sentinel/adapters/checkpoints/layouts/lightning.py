"""Lightning: one file of torch.save, or a folder of torch.distributed.checkpoint with the rest in meta.pt."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from sentinel.adapters.checkpoints.archive import UnsoundError
from sentinel.adapters.checkpoints.declared import plain_values
from sentinel.adapters.checkpoints.layouts.deepspeed import missing_of_deepspeed
from sentinel.adapters.checkpoints.layouts.layout import (
    PIECES,
    PLAIN,
    STEP,
    Layout,
    first_missing,
    inside,
    missing_of_torch,
)


class LightningLayout(Layout):
    title = "Lightning"
    tag = re.compile(rf"(?P<tag>{PLAIN}(?<![a-z])step={STEP}(?:-{PLAIN})?\.ckpt)")
    shard = re.compile(rf"{PIECES.pattern}|.*\.ckpt|meta\.pt", re.DOTALL)
    links = re.compile(r"last(?:-v[0-9]{1,3})?\.ckpt")

    def missing(self, names: frozenset[str], deep: bool) -> str | None:
        if any(name.endswith(".ckpt") for name in names):
            return None
        if "checkpoint" in names:  # its DeepSpeed strategy
            return missing_of_deepspeed(inside("checkpoint", names)) if deep else None
        return missing_of_torch(names) or first_missing(("meta.pt",), names)

    def step_in(self, copy: Path) -> object:
        status = copy.stat()
        return _global_step(copy, (status.st_ino, status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=16)
def _global_step(path: Path, identity: tuple[int, int, int]) -> object:  # noqa: ARG001 - what is remembered is of this file
    """Lightning's own, in the file or in the folder's meta.pt."""
    try:
        return plain_values(path / "meta.pt" if path.is_dir() else path).get("global_step")
    except (OSError, UnsoundError):
        return None
