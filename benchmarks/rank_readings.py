"""What the exchange of readings costs each rank as ranks grow, without a model: the ranks' thread, and the training's.

    python benchmarks/rank_readings.py [--ranks 1 8 64] [--layers 34] [--steps 200] [--json]

Forks gloo ranks on this machine. Each makes steps of a sleep and one all-reduce of its own, once without the hook's
exchange and once with it, by turns. Printed of rank 0 and of the last rank: processor time of the ranks' thread and of
the training thread per step, numbers that are sent, and the time of a step on the clock; more ranks than processors
take turns, and only the processor times mean something then.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from trainer_hooks.errors import Guard
from trainer_hooks.ranks import Ranks
from trainer_hooks.ranks.frame import FRAME, TOPS
from trainer_hooks.ranks.groups import FAN
from trainer_hooks.sample.gathering import Gathering

INTERVAL = 10  # every how many steps the layers are sent


class Numbers:
    """What a measurement is to the exchange: it is on the host at once."""

    def ready(self) -> bool:
        return True

    def rank_reading(self) -> dict[str, float]:
        return {"loss": 2.0, "variance_l1": 1.0, "variance_top": 1.0}

    def layer_rows(self, layers: list[str]) -> tuple[list[float], list[float], list[float]]:
        none = [0.0] * len(layers)
        return none, none, none


def of_rank(steps: int, layers: int, period_s: float) -> dict[str, Any]:
    ranks, seen = Ranks(), [0]
    ranks.joined()
    names = ranks.union([f"block {n}" for n in range(layers)])
    gathering = Gathering(ranks, names, lambda *_: seen.__setitem__(0, seen[0] + 1), Guard())
    names.wait(60)
    ones, on_clock, own = torch.ones(8), {True: [0.0], False: [0.0]}, [0.0]
    thread_s = _thread_s(ranks)
    for step in range(1, 2 * steps + 1):
        with_hook = step % (2 * INTERVAL) < INTERVAL
        began = time.perf_counter()
        time.sleep(period_s)
        if ranks.world > 1:
            dist.all_reduce(ones)
        if with_hook:
            before = time.thread_time()
            numbers: Any = Numbers()
            gathering.add(step, step if ranks.rank == 0 else None, numbers, layered=step % INTERVAL == 0)
            gathering.advance()
            own.append(time.thread_time() - before)
        on_clock[with_hook].append(time.perf_counter() - began)
    while len(gathering):
        gathering.advance(0.1)
    frames = 1 + (-(-layers // TOPS)) / INTERVAL
    return {
        "rank": ranks.rank,
        "ranks": ranks.world,
        "samples": seen[0],
        "thread_ms": 1e3 * (_thread_s(ranks) - thread_s) / steps,
        "training_ms": 1e3 * statistics.mean(own),
        "bytes_sent": 8 * FRAME * frames * (1 if ranks.rank else 0),
        "step_ms_without": 1e3 * statistics.median(on_clock[False]),
        "step_ms_with": 1e3 * statistics.median(on_clock[True]),
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _thread_s(ranks: Ranks) -> float:
    """Processor time of the ranks' threads so far, in seconds; 0 where there are none."""
    clocks = (time.pthread_getcpuclockid(one.ident) for one in ranks._threads if one.ident is not None)
    return sum(time.clock_gettime(clock) for clock in clocks)


def on_ranks(world: int, steps: int, layers: int, period_s: float) -> list[dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    reads, writes = os.pipe()
    processes = []
    for rank in range(world):
        if (pid := os.fork()) == 0:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
            if world > 1:
                dist.init_process_group("gloo", rank=rank, world_size=world)
            row = of_rank(steps, layers, period_s)
            if rank in (0, world - 1):
                os.write(writes, json.dumps(row).encode() + b"\n")
            if world > 1:
                dist.barrier()
            os._exit(0)
        processes.append(pid)
    os.close(writes)
    with os.fdopen(reads) as lines:
        rows = [json.loads(line) for line in lines]
    for pid in processes:
        os.waitpid(pid, 0)
    return sorted(rows, key=lambda row: int(row["rank"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 8, FAN])
    parser.add_argument("--layers", type=int, default=34)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--period-s", type=float, default=0.02, help="sleep of a step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for world in arguments.ranks:
        rows += on_ranks(world, arguments.steps, arguments.layers, arguments.period_s)
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    print(
        f"{'ranks':>5} {'rank':>5} {'thread ms':>10} {'training ms':>12} {'bytes sent':>11} "
        f"{'step ms':>9} {'without':>9}"
    )
    for row in rows:
        print(
            f"{row['ranks']:>5} {row['rank']:>5} {row['thread_ms']:>10.3f} {row['training_ms']:>12.3f} "
            f"{row['bytes_sent']:>11.0f} {row['step_ms_with']:>9.2f} {row['step_ms_without']:>9.2f}"
        )


if __name__ == "__main__":
    main()
