"""Part of `in_place.py --cost`: what a boundary costs the training thread, where the trainer can park and where not.

    torchrun … benchmarks/in_place_cost.py TURNS
    torchrun … benchmarks/in_place_cost.py --memory STATES ARGUMENTS OF trainer_hooks.gpt

By turns of 200 boundaries, 1 ms apart; one line of JSON, by rank 0: microseconds of a boundary, medians of the turns.

`--memory`: what it costs to keep a state in memory, the digest included, which else a thread makes beside the next
steps; and how long a step takes. Medians, over so many states, on rank 0: by the clock, and by the CPU time of the
process, which other work on the machine does not count in.
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
STEPS, EVERY, WARM_UP = 3, 50, 2  # Steps between two states here; steps for which the share is; states left out
OF = ("clock", "cpu")


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


def of_memory(states: int, arguments: list[str]) -> dict[str, float]:
    """Milliseconds of a state that is kept, and of a step."""
    from trainer_hooks.gpt.arguments import parse
    from trainer_hooks.gpt.process import Process
    from trainer_hooks.gpt.train import Trainer, leave_out_unused_ops
    from trainer_hooks.in_memory.targets import MemoryTargets

    leave_out_unused_ops()
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        files = ["--save", f"{folder}/checkpoints", "--state-dir", f"{folder}/state"]
        trainer = Trainer(parse([*arguments, *files, "--steps", "1000000", "--lr-decay", "100"]), Process())
        memory = MemoryTargets(trainer.engine, most=2, every=1)
        hook, steps, keeps = trainer.hook, list[tuple[float, float]](), list[tuple[float, float]]()
        for _ in range(states):
            for _ in range(STEPS):
                began = time.perf_counter(), time.process_time()
                trainer.step()
                steps.append((time.perf_counter() - began[0], time.process_time() - began[1]))
            began = time.perf_counter(), time.process_time()
            memory.at_boundary(trainer.engine, trainer.number, trainer.client_state, hook.report_memory, hook.guard)
            memory.settle(hook.report_memory)
            keeps.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        hook.close("finished")
        dist.barrier()
    times = {"keep": keeps[WARM_UP:], "step": steps[WARM_UP * STEPS :]}
    made = {f"{n}_{of}_ms": 1e3 * median(t[i] for t in ts) for n, ts in times.items() for i, of in enumerate(OF)}
    made |= {f"share_{of}": made[f"keep_{of}_ms"] / (EVERY * made[f"step_{of}_ms"]) for of in OF}
    return made | {"state_mb": memory.size_bytes / 1e6, "ranks": dist.get_world_size()}


def main() -> None:
    be_a_launcher()
    if sys.argv[1] == "--memory":
        found = of_memory(int(sys.argv[2]), sys.argv[3:])
        if dist.get_rank() == 0:
            print(json.dumps(found))
        return
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
