"""What a start takes on journals of many steps, without and with the judge's state of `STATE_DIR/cache`.

    python benchmarks/start_time.py [--quick] [--json] [--steps N,N]

Each row is a process of its own: `sentinel status`, or the first turn of `sentinel watch --once --observe`.

- `nothing`: a run of 10 steps, for what the interpreter and the imports take.
- `whole`: the folder was deleted before.
- `kept`: the state is there, and nothing is new.
- `1,000 more`: 1,000 samples have come since it was kept: a daemon was away, and another takes over.
- `goes back`: an attempt has begun meanwhile that resumes from 2,000 steps before the end, and has made 100.

CPU is user and system time of the process, RSS its largest memory. `cache` is the size of the folder.

10,000, 100,000 and 1,000,000 steps of one attempt; --quick 2,000.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.simulated.daemon import PYTHON, configure, free_port
from benchmarks.simulated.journals import begun, line
from benchmarks.simulated.runs import FIRST_STEP, SimulatedRun
from sentinel.vocabulary.sample import RunStarted, encode

STEPS, QUICK_STEPS = (10**4, 10**5, 10**6), (2000,)
NEW, BACK, MADE = 1000, 2000, 100

Row = dict[str, Any]
RUN = SimulatedRun(number=0, diverges_at=None)


def measured(command: list[str], folder: Path) -> Row:
    """CPU s, wall s and RSS MB of one process."""
    alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=alone, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
        told = process.stderr.read().decode() if process.stderr else ""
    if "Traceback" in told:
        raise SystemExit(told[-3000:])
    cpu_s = used.ru_utime + used.ru_stime
    return {"cpu_s": cpu_s, "wall_s": time.perf_counter() - began, "rss_mb": used.ru_maxrss / 1024}


def commands(folder: Path) -> dict[str, list[str]]:
    """What is started, by name."""
    config = str(folder / "runs" / f"{RUN.name}.toml")
    return {
        "status": [*PYTHON, "sentinel", "status", "--run", config],
        "watch": [*PYTHON, "sentinel", "watch", "--run", config, "--once", "--observe"],
    }


def apart(work: Callable[[], None]) -> None:
    """Does it in a process of its own: the memory of this one would count as that of those it starts."""
    process = get_context("fork").Process(target=work)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("the journals could not be written")


def tell(state: Path, attempt: int, first: int, count: int, *, started: RunStarted | None = None) -> None:
    """Appends so many samples, one a second, up to now."""
    now = time.time()
    with (state / "attempts" / f"{attempt:04d}.jsonl").open("a") as file:
        if started is not None:
            file.write(encode(started) + "\n")
        for i in range(count):
            told = line(RUN, first + i, now - count + i)
            file.write(told.replace('"attempt": 1,', f'"attempt": {attempt},', 1))


def cache_kb(state: Path) -> float:
    """Kilobytes in the cache."""
    return sum(path.stat().st_size for path in (state / "cache").glob("*")) / 1000


def rows_of(steps: int, folder: Path) -> list[Row]:
    """All cases at one length."""
    (state,) = configure(folder, [RUN], free_port(), None).values()
    apart(lambda: os.close(begun(RUN, state, steps, time.time() - steps)))
    cache, last = state / "cache", FIRST_STEP + steps - 1
    rows = []

    def case(name: str, started: str) -> None:
        rows.append({"steps": steps, "case": name, "start": started} | measured(commands(folder)[started], folder))
        rows[-1]["cache_kb"] = cache_kb(state)
        print(rows[-1], file=sys.stderr)

    for started in ("status", "watch"):
        shutil.rmtree(cache, ignore_errors=True)
        case("whole", started)
        case("kept", started)
    shutil.copytree(cache, folder / "before")
    tell(state, 1, last + 1, NEW)
    for started in ("status", "watch"):
        shutil.rmtree(cache)
        shutil.copytree(folder / "before", cache)
        case(f"{NEW:,} more", started)
    begins = RunStarted(attempt=2, time_unix_s=time.time(), parent_attempt=1, resumed_from=last - BACK)
    tell(state, 2, last - BACK + 1, MADE, started=begins)
    case("goes back", "watch")
    return rows


def table(rows: list[Row]) -> str:
    """For a person."""
    lines = ["    steps  start   case          CPU s   wall s   RSS MB   cache KB"]
    lines += [
        f"{r['steps']:>9,}  {r['start']:<7} {r['case']:<12}{r['cpu_s']:>7.2f}{r['wall_s']:>9.2f}{r['rss_mb']:>9.0f}"
        f"{r['cache_kb']:>11.0f}"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--steps", type=lambda text: tuple(map(int, text.split(","))))
    asked = parser.parse_args()
    rows = []
    for steps in (10, *(asked.steps or (QUICK_STEPS if asked.quick else STEPS))):
        with tempfile.TemporaryDirectory() as folder:
            rows += rows_of(steps, Path(folder)) if steps > 10 else nothing(Path(folder))
    print(json.dumps({"rows": rows}) if asked.json else table(rows))


def nothing(folder: Path) -> list[Row]:
    """What a start takes where there is next to nothing to read."""
    (state,) = configure(folder, [RUN], free_port(), None).values()
    os.close(begun(RUN, state, 10, time.time() - 10))
    cases = commands(folder).items()
    return [
        {"steps": 10, "case": "nothing", "start": name, "cache_kb": 0.0} | measured(one, folder) for name, one in cases
    ]


if __name__ == "__main__":
    main()
