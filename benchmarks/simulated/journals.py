"""A process that is many trainers' journals: each gets its line once a second.

    python -m benchmarks.simulated.journals PLAN

The plan is JSON: `runs` (of SimulatedRun), `folders` (state folders, in the same order), `begin_unix_s`, when step
FIRST_STEP ended, and `until_unix_s`. The lines up to now are written first, then those of each second, spread over it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun
from sentinel.vocabulary.sample import RunStarted, encode

__all__ = ["main"]

_UNTIMED = '"time_unix_s": 0.0'


@cache
def _written(curve: int, step: int) -> str:
    return encode(SimulatedRun(number=curve, diverges_at=None).sample(step, 0.0))


def line(run: SimulatedRun, step: int, time_unix_s: float) -> str:
    """As the hook writes it. Encoded once for the healthy runs on one curve, and set to each one's time."""
    untimed = encode(run.sample(step, 0.0)) if run.is_ill(step) else _written(run.curve, step)
    return untimed.replace(_UNTIMED, f'"time_unix_s": {time_unix_s:.6f}', 1) + "\n"


def begun(run: SimulatedRun, folder: Path, steps: int, begin_unix_s: float) -> int:
    """Writes the journal's past; its file descriptor."""
    (folder / "attempts").mkdir(parents=True, exist_ok=True)
    started = RunStarted(attempt=1, time_unix_s=begin_unix_s - 2.0, run=run.name, resumed_from=FIRST_STEP - 1)
    path = folder / "attempts" / "0001.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    past = [line(run, FIRST_STEP + i, begin_unix_s + i) for i in range(steps)]
    os.write(descriptor, "".join([encode(started) + "\n", *past]).encode())
    return descriptor


def main() -> None:
    """Writes until it is over."""
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    runs = [SimulatedRun(**run) for run in plan["runs"]]
    begin = plan["begin_unix_s"]
    made = max(0, int(time.time() - begin))
    past = [begun(run, Path(folder), made, begin) for run, folder in zip(runs, plan["folders"], strict=True)]
    print("ready", flush=True)
    second = made
    while time.time() < plan["until_unix_s"]:
        for i, (run, descriptor) in enumerate(zip(runs, past, strict=True)):
            due = begin + second + i / len(runs)
            if (now := time.time()) < due:
                time.sleep(due - now)
                now = time.time()
            os.write(descriptor, line(run, FIRST_STEP + second, now).encode())
        _written.cache_clear()
        second += 1


if __name__ == "__main__":
    main()
