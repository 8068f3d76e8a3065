"""What the whole hook costs a step as ranks and parameters grow: on the training thread, and in what is sent.

    python benchmarks/hook_ranks.py [--quick] [--json]

Trains a stack of linear layers in DeepSpeed (ZeRO 1, gloo) on 1, 2, 4 and 8 ranks, and takes on rank 0, for each step,
the time that its thread spends in the hook's own methods: on the clock, which includes waiting for the other ranks'
readings of that step, and of the processor, which does not; the ranks' own thread is beside it (its processor time is
what benchmarks/rank_readings.py prints). Beside it one read of v on that rank, which is the part of
the work that grows with the model, and the numbers that a step sends per rank. More ranks than processors take turns:
the clock then tells how long a rank waits for its turn, and the processor's time is the one to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

RANKS = (1, 2, 4, 8)
WIDTHS = (256, 1024)
LAYERS = 6
STEPS, WARM = 40, 10
INTERVAL = 10
_CACHE_ELEMENTS = 16_000_000
"""What is written before each read of v, so that it comes from memory as it does after a step's work."""


def measured(width: int) -> dict[str, Any]:
    """On every rank; the answer is rank 0's."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch import nn

    from trainer_hooks import attach
    from trainer_hooks.ranks.groups import Level

    torch.manual_seed(0)
    torch.set_num_threads(1)
    world = dist.get_world_size()
    net = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    config = {
        "train_batch_size": 4 * world,
        "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    hook = attach(engine, state_dir=tempfile.mkdtemp(), interval_steps=INTERVAL)
    clock, processor, sent = [0.0], [0.0], [0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def with_time(*args: Any, **kwargs: Any) -> Any:
            wall, own = time.perf_counter(), time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                clock[-1] += time.perf_counter() - wall
                processor[-1] += time.thread_time() - own

        return with_time

    hook.loss_seen = timed(hook.loss_seen)  # type: ignore[method-assign]
    hook.update_coming = timed(hook.update_coming)  # type: ignore[method-assign]
    hook.step_made = timed(hook.step_made)  # type: ignore[method-assign]
    gather = Level.gather

    def counting(level: Level, frame: Any, *args: Any) -> Any:
        sent[-1] += frame.numel()
        return gather(level, frame, *args)

    Level.gather = counting  # type: ignore[method-assign]
    whole = []
    for _ in range(STEPS):
        for row in (clock, processor, sent):
            row.append(0)
        started = time.perf_counter()
        loss = engine(torch.randn(4, width)).square().mean()
        engine.backward(loss)
        engine.step()
        whole.append(time.perf_counter() - started)
    Level.gather = gather  # type: ignore[method-assign]
    v = next(iter(engine.optimizer.optimizer.state.values()))["exp_avg_sq"]
    other = torch.ones(_CACHE_ELEMENTS)
    floor = statistics.median(_seconds(v.sum) for _ in range(15) if other.add_(1) is not None)
    hook.close("finished")
    plain = [i for i in range(WARM, STEPS) if i % INTERVAL != INTERVAL - 1]
    with_all = [i for i in range(WARM, STEPS) if i % INTERVAL == INTERVAL - 1]

    def median(row: list[Any], steps: list[int]) -> float:
        return statistics.median(row[i + 1] for i in steps)  # the first is what came before the steps

    return {
        "ranks": world,
        "params": sum(p.numel() for p in net.parameters()),
        "step_ms": 1e3 * statistics.median(whole[WARM:]),
        "floor_ms": 1e3 * floor,
        "hook_ms": 1e3 * median(clock, plain),
        "hook_cpu_ms": 1e3 * median(processor, plain),
        "interval_hook_cpu_ms": 1e3 * median(processor, with_all),
        "numbers_sent": median(sent, plain),
        "interval_numbers_sent": median(sent, with_all),
        "samples": int(hook.latest.global_step) if hook.latest else 0,
        "errors": hook.errors,
    }


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def on_ranks(ranks: int, widths: list[int]) -> list[dict[str, Any]]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", __file__]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(sys.path))
    ran = subprocess.run(
        [*torchrun, "--rank", *map(str, widths)], capture_output=True, text=True, env=environment, check=False
    )
    if ran.returncode:
        raise SystemExit(ran.stderr[-3000:])
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"ranks"')]


def as_rank(widths: list[int]) -> None:
    import torch.distributed as dist

    from trainer_hooks.gpt.__main__ import leave
    from trainer_hooks.gpt.train import leave_out_unused_ops

    leave_out_unused_ops()
    dist.init_process_group("gloo")
    for width in widths:
        row = measured(width)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
        dist.barrier()
    leave(0)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            f"{'ranks':>5} {'params':>11} {'step ms':>9} {'read of v':>10} {'hook ms':>9} {'its CPU':>9} "
            f"{'each ' + str(INTERVAL) + 'th':>9} {'sent':>6} {'each ' + str(INTERVAL) + 'th':>9} {'samples':>8}"
        )
    ]
    lines += [
        f"{r['ranks']:>5} {r['params']:>11,} {r['step_ms']:>9.2f} {r['floor_ms']:>10.3f} {r['hook_ms']:>9.3f} "
        f"{r['hook_cpu_ms']:>9.3f} {r['interval_hook_cpu_ms']:>9.3f} {r['numbers_sent']:>6.0f} "
        f"{r['interval_numbers_sent']:>9.0f} {r['samples']:>8}"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 2 ranks")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--rank", nargs="*", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        as_rank(arguments.rank)
        return
    rows = []
    for ranks in RANKS[:2] if arguments.quick else RANKS:
        found = on_ranks(ranks, list(WIDTHS))
        rows += found
        if not arguments.json:
            print(table(found), flush=True)
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
