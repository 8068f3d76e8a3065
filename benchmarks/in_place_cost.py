"""Part of `in_place.py --cost`: what a boundary costs the training thread, where the trainer can park and where not.

    torchrun … benchmarks/in_place_cost.py TURNS

By turns of 200 boundaries, 1 ms apart; one line of JSON, by rank 0: microseconds of a boundary, medians of the turns.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist

from trainer_hooks.control.parking import Parking
from trainer_hooks.control.step_requests import StepRequests
from trainer_hooks.errors import Guard
from trainer_hooks.gpt.__main__ import be_a_launcher, leave
from trainer_hooks.ranks import ranks_of_world

BOUNDARIES, APART_S = 200, 0.001


def turn(requests: StepRequests) -> float:
    """Microseconds of a boundary, the median of a turn."""
    dist.barrier()
    taken = []
    for _ in range(BOUNDARIES):
        time.sleep(APART_S)
        began = time.perf_counter()
        requests.at_boundary()
        taken.append(time.perf_counter() - began)
    return 1e6 * median(taken)


def main() -> None:
    be_a_launcher()
    dist.init_process_group("gloo")
    ranks_of_world().joined()
    with tempfile.TemporaryDirectory() as folder:
        place = Parking(Path(folder), Guard(), lambda: 1)
        parks = StepRequests.of_training(Path(folder), Guard(), {}, place.file.accepts)
        does_not = StepRequests.of_training(Path(folder), Guard(), {})
        turn(parks), turn(does_not)
        pairs = [(turn(parks), turn(does_not)) for _ in range(int(sys.argv[1]))]
        parks.close()
        does_not.close()
        dist.barrier()
    if dist.get_rank() == 0:
        of_each = {"with_us": median(a for a, _ in pairs), "without_us": median(b for _, b in pairs)}
        print(json.dumps({"ranks": dist.get_world_size(), **of_each, "more_us": median(a - b for a, b in pairs)}))


if __name__ == "__main__":
    main()
    leave(0)
