"""Run under torchrun: the hook's own reductions, in one level and in several. One JSON line per case."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
import torch.distributed as dist

from trainer_hooks.gpt.__main__ import leave
from trainer_hooks.sample.gathering import AllRanks


def exact(fan: int) -> dict[str, Any]:
    ranks = AllRanks(fan=fan)
    me, world = ranks.rank, ranks.world
    names = ranks.union(["embedding", f"block {me}", f"block {me + 1}"])
    told: list[Any] = [None] * world
    dist.all_gather_object(told, names)
    under_way = [ranks.start([1.0, me / 3, math.nan if me == step else 0.0], [me, -me]) for step in range(20)]
    theirs = torch.ones(3)
    dist.all_reduce(theirs)  # the training's own collectives go on beside them
    done = [r.poll(200.0) for r in under_way]
    dist.barrier()
    ranks.close()
    return {
        "levels": len(ranks._levels),
        "done": all(done),
        "sums": [[repr(x) for x in r.sums.tolist()] for r in under_way],
        "tops": [r.tops.tolist() for r in under_way],
        "world": world,
        "same names everywhere": all(t == names for t in told),
        "names": names,
        "training": theirs.tolist(),
    }


def main() -> None:
    dist.init_process_group("gloo")
    for fan in (64, 2, 3):
        answer = exact(fan)
        if dist.get_rank() == 0:
            print(json.dumps({"case": f"fan {fan}", **answer}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave(0)
