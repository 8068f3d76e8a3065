"""A save folder of many whole checkpoints: hard links to a few small archives, many names and few inodes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

STEPS_BETWEEN = 100
_LINKS_PER_INODE = 30_000  # ext4 takes 65,000


def make(folder: Path, checkpoints: int, files: int) -> None:
    """Whole by name and by content: one model file, the rest optimizer shards."""
    source, made = folder / ".source", 0
    source.mkdir()
    shard = source
    for number in range(1, checkpoints + 1):
        tag = folder / f"global_step{number * STEPS_BETWEEN}"
        tag.mkdir()
        for rank in range(files):
            if made % _LINKS_PER_INODE == 0:
                shard = _archive(source / f"{made}.pt")
            made += 1
            os.link(
                shard,
                tag / (f"zero_pp_rank_{rank - 1}_mp_rank_00_optim_states.pt" if rank else "mp_rank_00_model_states.pt"),
            )
    (folder / "latest").write_text(f"global_step{checkpoints * STEPS_BETWEEN}")


def _archive(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(64))
    return path
