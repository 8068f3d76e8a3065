"""Two ranks save by torch.distributed.checkpoint, and are killed in their last save: `python dcp_saves.py FOLDER
[over]`. With `over` they have saved before, and the last save is over one of those."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


class KilledBeforeTheEnd(FileSystemWriter):
    """Rank 0 is gone when all pieces are written, and .metadata is not."""

    def finish(self, metadata: Any, results: Any) -> None:  # noqa: ARG002
        os.kill(os.getpid(), signal.SIGKILL)


def rank(number: int, folder: str, over: bool, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {"weights": distribute_tensor(torch.randn(4096, 8), mesh, [Shard(0)]), "step": 1}
    last = f"{folder}/step-{40 if over else 30}"
    if over:
        dcp.save(state, checkpoint_id=f"{folder}/step-10")
        dcp.async_save(state, checkpoint_id=f"{folder}/step-20").result()
        dcp.save(state, checkpoint_id=last)
        if number == 0:
            before = time.time() - 600  # it was saved ten minutes ago
            for path in Path(last).iterdir():
                os.utime(path, (before, before))
        dist.barrier()
    dcp.async_save(state, storage_writer=KilledBeforeTheEnd(last)).result()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        arguments = (sys.argv[1], "over" in sys.argv[2:], f"{shared}/meeting")
        mp.start_processes(rank, args=arguments, nprocs=2, start_method="fork")
