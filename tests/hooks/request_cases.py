"""Run under torchrun with 2 ranks: every integration trains, is asked for a save and for its end, and closes, where no
collective of the training may be used by trainer_hooks. One JSON line per case and rank.

    torchrun --nproc_per_node 2 request_cases.py huggingface        # or: others, fsdp2
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, Sample, decode
from tests.hooks import own_collectives
from tests.hooks.asked_trainings import huggingface, megatron, plain, raising, reference, terminated
from tests.hooks.callback_decisions import shard_on_cpus
from tests.hooks.patient import patient
from trainer_hooks.control import step_requests, watched_files
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.gpt.train import leave_out_unused_ops

BY_TOKENS = LrSchedule(peak=1e-2, warmup=4000, decay_end=10**9, unit="tokens")

ops_of_boundaries: list[str] = []


class Ops(TorchDispatchMode):
    """What torch is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ops_of_boundaries.append(str(func))
        return func(*args, **(kwargs or {}))


def watch_boundaries() -> None:
    at_boundary = StepRequests.at_boundary

    def watched(self: StepRequests, *given: Any, **named: Any) -> Any:
        with Ops():
            return at_boundary(self, *given, **named)

    StepRequests.at_boundary = watched  # type: ignore[method-assign]


@contextmanager
def filesystem_that(fails: Callable[[], None]) -> Iterator[list[str]]:
    """For the files KILL and SAVE, on rank 0; the names that were looked for."""
    stat, looked = os.stat, list[str]()

    def failing(path: Any, *given: Any, **named: Any) -> Any:
        if isinstance(path, Path) and path.name in ("KILL", "SAVE"):
            looked.append(path.name)
            fails()
        return stat(path, *given, **named)

    if dist.get_rank() == 0:
        os.stat = failing
    try:
        yield looked
    finally:
        os.stat = stat


def hangs() -> None:
    """For the thread that watches; a start has a time of its own for what it reads."""
    if threading.current_thread().name == "sentinel-files":
        time.sleep(300)


def shared_folder() -> Path:
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    return Path(shared[0])


def told(folder: Path) -> dict[str, Any]:
    """What the journal says."""
    journals = sorted((folder / "state" / "attempts").glob("*.jsonl"))
    records = [decode(line) for line in journals[-1].read_text().splitlines()] if journals else []
    return {
        "samples": sum(isinstance(r, Sample) for r in records),
        "saved": [r.tag for r in records if isinstance(r, CheckpointSaved)],
        "ends": [r.reason for r in records if isinstance(r, RunFinished)],
        "lr": {r.global_step: r.lr for r in records if isinstance(r, Sample)},
        "tokens": {r.global_step: r.consumed_tokens for r in records if isinstance(r, Sample)},
    }


def say(case: str, folder: Path, found: dict[str, Any]) -> None:
    dist.barrier()
    found |= told(folder) | {"refused": own_collectives.refused, "ops": ops_of_boundaries}
    line = json.dumps({"case": case, "rank": dist.get_rank()} | found)
    os.write(1, (line + "\n").encode())


def of_huggingface() -> None:
    bare = shared_folder()
    say("bare", bare, huggingface(bare, hooked=False, asks=False))
    for name in ("ESTALE", "EIO", "EACCES"):
        folder = shared_folder()
        with filesystem_that(raising(getattr(errno, name))) as looked:
            found = huggingface(folder, asks=False)
        say(name, folder, found | {"looks": len(looked)})
    folder = shared_folder()
    with filesystem_that(hangs) as looked:
        found = huggingface(folder, asks=False)
    say("hangs", folder, found | {"looks": len(looked)})
    folder = shared_folder()
    say("asked", folder, huggingface(folder))
    folder = shared_folder()
    say("no hook on rank 1", folder, huggingface(folder, fails_to_attach=dist.get_rank() == 1))
    folder = shared_folder()
    if dist.get_rank() == 0:
        (folder / "state").mkdir()
        (folder / "state" / "overrides.json").write_text('{"schema": 99}')
    dist.barrier()
    try:
        say("refused", folder, huggingface(folder))
    except OverridesError as error:
        say("refused", folder, {"error": str(error)})
    folder = shared_folder()
    if dist.get_rank() == 0:
        (folder / "state").mkdir()
        (folder / "state" / "KILL").touch()
    dist.barrier()
    say("KILL at the start", folder, huggingface(folder, asks=False))
    folder = shared_folder()
    if dist.get_rank() == 0:
        overrides = Overrides(
            incident="i", rollback="r1", anchor=Anchor(global_step=0), standing=TrainingSettings(lr=BY_TOKENS)
        )
        (folder / "state").mkdir()
        (folder / "state" / "overrides.json").write_text(encode_overrides(overrides))
    dist.barrier()
    say("LR by tokens", folder, huggingface(folder, asks=False, uneven=True))


def of_others() -> None:
    folder = shared_folder()
    say("plain DeepSpeed", folder, plain(folder))
    folder = shared_folder()
    say("Hugging Face with DeepSpeed", folder, huggingface(folder, with_deepspeed=True))
    folder = shared_folder()
    say("reference", folder, reference(folder))
    folder = shared_folder()
    say("SIGTERM of one rank", folder, terminated(folder))
    folder = shared_folder()
    say("Megatron", folder, megatron(folder))


def of_fsdp2() -> None:
    shard_on_cpus()
    folder = shared_folder()
    say("Hugging Face with FSDP 2", folder, huggingface(folder, sharded=True))


def main() -> None:
    leave_out_unused_ops()
    patient()
    watched_files.PERIOD_S, step_requests.FIRST_LOOK_S = 0.01, 1.0
    if sys.argv[1] in ("huggingface", "fsdp2"):
        dist.init_process_group("gloo")
    else:
        deepspeed.init_distributed("gloo", verbose=False)
    own_collectives.forbid()
    watch_boundaries()
    {"huggingface": of_huggingface, "others": of_others, "fsdp2": of_fsdp2}[sys.argv[1]]()
    say("a collective of ours", shared_folder(), {"is refused": own_collectives.is_refused()})
    dist.barrier()
    asked_by = dict(own_collectives.asked_by)
    os.write(1, (json.dumps({"case": "all", "rank": dist.get_rank(), "asked_by": asked_by}) + "\n").encode())


if __name__ == "__main__":
    main()
    leave(0)
