"""Four processes that train together on one device, whose readings go by two levels of ranks."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

from .case import Row, Setting
from .running import run_child

__all__ = ["four"]

RANKS, FAN = 4, 2
STEPS = 30
TOLERANCE = 1e-6


def four(setting: Setting) -> Row:
    """NCCL refuses two ranks on one device: the training's own group is gloo. Each rank has data of its own, and
    pauses at steps of its own."""
    code = f"from benchmarks.gpu.ranks import start; start({setting.device!r})"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    exit_code, printed = run_child([sys.executable, "-c", code], env=env)
    if exit_code:
        raise RuntimeError(f"a rank ended with exit code {exit_code}, see the log")
    row: Row = json.loads(next(line for line in printed.splitlines() if line.startswith('{"samples"')))
    wrong = [f"{row['errors']} errors of the hook"] if row["errors"] else []
    if row["samples"] != STEPS:
        wrong.append(f"{row['samples']} samples of {STEPS} steps")
    wrong += [f"{name} differs by {error:.1e}" for name, error in row["worst"].items() if not error <= TOLERANCE]
    return {**row, "wrong": wrong}


def start(device: str) -> None:
    """Four ranks, one after the other's start; ends when all have, with the first exit code that is not 0."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(rank, device)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(next((abs(process.exitcode or 0) for process in ranks if process.exitcode), 0))


def _rank(rank: int, device: str) -> None:
    from .running import die_with_the_parent

    die_with_the_parent()
    os.environ.update(RANK=str(rank), LOCAL_RANK="0")
    import torch
    import torch.distributed as dist

    from tests.hooks.patient import patient
    from trainer_hooks.gpt.__main__ import leave

    from .plain import PlainTraining

    torch.set_num_threads(1)
    if device == "cpu":
        patient()  # with fewer processors than ranks one may stand still for a second, which the hook counts
    dist.init_process_group("gloo")
    _two_levels()
    own: list[float] = []
    l1: list[float] = []

    def seen(loss: float) -> None:
        own.append(loss)
        l1.append(sum(float(s["exp_avg_sq"].double().sqrt().sum()) for s in training.optimizer.state.values()))
        if len(own) % 7 == rank:
            time.sleep(0.05)

    with PlainTraining(device) as training:
        training.steps(STEPS, each=seen)
    losses = [torch.zeros(STEPS, dtype=torch.float64) for _ in range(RANKS)]
    dist.all_gather(losses, torch.tensor(own, dtype=torch.float64))
    if rank == 0:
        mean = torch.stack(losses).mean(0)
        worst = {"loss": 0.0, "adam_variance_l1": 0.0}
        for sample in training.samples:
            at = sample.global_step - 1
            exact = {"loss": float(mean[at]), "adam_variance_l1": l1[at]}
            for name, value in exact.items():
                read = getattr(sample, name)
                error = float("inf") if read is None else abs(read - value) / abs(value)
                worst[name] = max(worst[name], error)
        print(
            json.dumps({"samples": len(training.samples), "errors": training.hook.errors, "worst": worst}), flush=True
        )
    dist.barrier()
    leave(0)


def _two_levels() -> None:
    """Groups of two ranks, where the hook takes 64 by default: whichever class of the hook's has that default."""
    from trainer_hooks import hook

    (kind,) = (kind for kind in vars(hook).values() if isinstance(kind, type) and "fan" in _defaults_of(kind))
    _defaults_of(kind)["fan"] = FAN


def _defaults_of(kind: type) -> dict[str, Any]:
    return getattr(kind.__init__, "__kwdefaults__", None) or {}
