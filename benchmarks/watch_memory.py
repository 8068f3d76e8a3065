"""What a watch keeps of a run and what a look costs it, by how many steps the run has made.

    python benchmarks/watch_memory.py [--quick] [--json]

Ways: `all kept` keeps every sample as an object, and makes each look's positions from the whole lineage, as
sentinel did until November 2026: of a look it is only that part. `watch` is the daemon's own look at a run that writes
a journal, `watch a log` at one that only logs: all of it, with the checkpoints and the incident log.

Each row is a process of its own. `first_look_s` reads and judges all there is. `look_ms` is the median of twenty more
looks, each with five new steps. Both are CPU time of the process. `kept_mb` is what the resident
memory has grown by since before the first look, `peak_mb` the most that it had grown by.

10^4, 10^5 and 10^6 steps, and a checkpoint for each twentieth of them; --quick: 10^3 and 10^4.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.made_up.files import WRITERS
from benchmarks.made_up.runs import columns
from sentinel.act.following import anchor_at
from sentinel.adapters.journal import Journals
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of, observer_of
from sentinel.judge.history import History
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds

STEPS, QUICK_STEPS = (10**4, 10**5, 10**6), (10**3, 10**4)
WAYS = ("all kept", "watch", "watch a log")
LOOKS = 20
NEW = 5
"""Lines that are new at a look."""

CONFIG = """
[run]
name = "made-up"
checkpoints = "checkpoints"
state_dir = "state"
[launcher]
kind = "elsewhere"
"""
OF_A_LOG = '[source]\nkind = "log"\npath = "log.txt"\n'

Row = dict[str, Any]


class AllKept:
    """The part of a look that grew with the run's steps."""

    def __init__(self, state_dir: Path) -> None:
        self._journals = Journals(state_dir)
        self._history = History()
        self._series = Series(Thresholds())
        self._pushed = 0

    def look(self) -> None:
        """Takes what is new; where the data stood at each step."""
        for record in self._journals.poll():
            self._history.push(record)
        attempt = self._history.latest
        if attempt is None:
            return
        for sample in attempt.samples[self._pushed :]:
            self._series.push(sample)
        self._pushed = len(attempt.samples)
        self.positions = {s.global_step: anchor_at(s) for s in list(self._history.lineage(attempt))}


def memory_mb(name: str) -> float:
    """VmRSS or VmHWM of this process."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith(f"{name}:"))) * 1024 / 1e6


def made(way: str, steps: int, folder: Path) -> None:
    """A run of so many steps, and beside its journal or log the lines that are still to come."""
    (folder / "run.toml").write_text(CONFIG + (OF_A_LOG if way == "watch a log" else ""))
    (folder / "state" / "attempts").mkdir(parents=True)
    path = readings(way, folder)
    _, write = WRITERS["megatron_log" if way == "watch a log" else "journal"]
    write(path, columns(steps, "all", "healthy"))
    lines = path.read_bytes().splitlines(keepends=True)
    later = lines[-NEW * LOOKS :]
    del lines[-NEW * LOOKS :]
    path.write_bytes(b"".join(lines))
    (folder / "later").write_bytes(b"".join(later))
    for step in range(steps // 20, steps, steps // 20):
        (folder / "checkpoints" / f"global_step{step}").mkdir(parents=True)


def readings(way: str, folder: Path) -> Path:
    """What the trainer writes."""
    return folder / "log.txt" if way == "watch a log" else folder / "state" / "attempts" / "0001.jsonl"


def look_of(way: str, folder: Path) -> Callable[[], object]:
    """One look at the run."""
    if way == "all kept":
        return AllKept(folder / "state").look
    config = load_config(folder / "run.toml")
    observer = observer_of(config, neighbours_of(config))
    return lambda: observer.look(time.time())


def measure(way: str, folder: Path) -> Row:
    """For a process of its own."""
    look, later = look_of(way, folder), (folder / "later").read_bytes().splitlines(keepends=True)
    gc.collect()
    before, began = memory_mb("VmRSS"), time.process_time()
    look()
    first_look_s = time.process_time() - began
    looks = []
    for _ in range(LOOKS):
        with readings(way, folder).open("ab") as file:
            file.write(b"".join(later[:NEW]))
        del later[:NEW]
        began = time.process_time()
        look()
        looks.append(time.process_time() - began)
    gc.collect()
    return {
        "first_look_s": first_look_s,
        "look_ms": median(looks) * 1e3,
        "kept_mb": memory_mb("VmRSS") - before,
        "peak_mb": memory_mb("VmHWM") - before,
    }


def in_a_child(way: str, steps: int) -> Row:
    """`measure` in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        made(way, steps, Path(folder))
        command = [sys.executable, __file__, "--measure", way, "--folder", folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ)
    measured: Row = json.loads(done.stdout)
    return {"way": way, "steps": steps} | measured


def table(rows: list[Row]) -> str:
    """The rows for reading."""
    lines = ["{:12}{:>11}{:>12}{:>12}{:>11}{:>11}".format("way", "steps", "first look", "a look", "kept", "peak")]
    lines += [
        f"{r['way']:12}{r['steps']:>11,}{r['first_look_s']:>10.2f} s{r['look_ms']:>9.2f} ms"
        f"{r['kept_mb']:>8.1f} MB{r['peak_mb']:>8.1f} MB"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        print(json.dumps(measure(asked.measure, asked.folder)))
        return
    rows = [in_a_child(way, steps) for way in WAYS for steps in (QUICK_STEPS if asked.quick else STEPS)]
    print(json.dumps({"rows": rows}) if asked.json else table(rows))


if __name__ == "__main__":
    main()
