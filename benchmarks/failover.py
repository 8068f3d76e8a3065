"""Two daemons on one folder of configurations: how soon runs are followed again when a process of them is killed.

    python benchmarks/failover.py [--json] [--runs N] [--workers N]

Real `sentinel watch --all --observe` processes with a poll interval of 5 seconds and journals of a step a second. The
first daemon takes half of the runs (--most), the second may take all. Both /metrics are read twice a second. A run
counts as followed again once a daemon that lives has made a turn of it after the kill.

- `worker`: kill -9 of one worker process of the first daemon.
- `daemon`: kill -9 of the first daemon and all its workers at once; the second takes its runs over. Both are on one
  machine: a lock of another machine is free after its lease of 120 seconds.
- `handed back`: SIGTERM to the second daemon, with a third one that waits.
- `twice`: runs of which two daemons made a turn within one interval of the readings, ever.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.simulated.daemon import PYTHON, configure, plan, started
from benchmarks.simulated.runs import SimulatedRun

_EVERY_S = 0.5
_CAN_TAKE_S = 300.0
_TURNS = re.compile(r'^sentinel_turns_total\{run="([^"]+)"\} (\S+)$', re.MULTILINE)


class Daemon:
    """One, and the turns of each of its runs as of the last reading."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, *options: str) -> None:
        self._log = folder / f"{name}.log"
        command = [*PYTHON, "sentinel", "watch", "--all", "--observe", "--config-dir", str(folder / "runs")]
        command += ["--fleet-dir", str(folder / name), *options]
        self.process = stack.enter_context(started(command, self._log))
        self.turns: dict[str, float] = {}

    def read(self) -> set[str]:
        """Runs of which it has made a turn since the last reading."""
        found = re.findall(r"itself is at port (\d+)", self._log.read_text())
        if not found or not self.process.is_running():
            return set()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{found[-1]}/metrics", timeout=60) as answer:
                now = {run: float(turns) for run, turns in _TURNS.findall(answer.read().decode())}
        except OSError:
            return set()
        turned = {run for run, turns in now.items() if turns > self.turns.get(run, 0.0)}
        self.turns = now
        return turned


class Observer:
    """Reads daemons by turns."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.twice: set[str] = set()

    def until_followed(self, *daemons: Daemon, count: int | None = None) -> list[float]:
        """Seconds until each run was followed, from now on."""
        for daemon in daemons:
            daemon.read()
        began_s, seen = time.monotonic(), dict[str, float]()
        while len(seen) < (count or self._count):
            time.sleep(_EVERY_S)
            turned = [daemon.read() for daemon in daemons]
            passed_s = time.monotonic() - began_s
            if passed_s > _CAN_TAKE_S:
                raise SystemExit(f"{self._count - len(seen)} runs are not followed after {passed_s:.0f} s")
            for n, of_one in enumerate(turned):
                for other in turned[n + 1 :]:
                    self.twice |= of_one & other
                for run in of_one:
                    seen.setdefault(run, passed_s)
        return sorted(seen.values())


def measured(count: int, workers: int, folder: Path) -> list[dict[str, Any]]:
    """A row for each case."""
    runs = [SimulatedRun(number=number, diverges_at=None) for number in range(count)]
    states, rows, options = configure(folder, runs, 0, None), [], ("--workers", str(workers))
    now = time.time()
    told = plan(
        folder / "plan.json",
        runs,
        folders=[str(states[run.name]) for run in runs],
        begin_unix_s=now - 60.0,
        until_unix_s=now + 3600.0,
    )
    watching = Observer(count)

    def row(case: str, of: int, followed_s: list[float]) -> None:
        lasted = {"p50_s": followed_s[len(followed_s) // 2], "last_s": followed_s[-1]}
        rows.append({"case": case, "runs": count, "of_it": of, **lasted, "twice": len(watching.twice)})

    with ExitStack() as stack:
        stack.enter_context(started([*PYTHON, "benchmarks.simulated.journals", told], folder / "t.log", ready="ready"))
        first = Daemon(stack, folder, "first", *options, "--most", str(count // 2))
        watching.until_followed(first, count=count // 2)
        second = Daemon(stack, folder, "second", *options, "--most", str(count))
        watching.until_followed(first, second)
        row("nothing", 0, watching.until_followed(first, second))
        worker = max(first.process.children(), key=lambda one: one.memory_info().rss)
        worker.kill()
        row("worker", len(first.turns), watching.until_followed(first, second))
        taken = len(first.turns)
        for process in (first.process, *first.process.children()):
            process.kill()
        psutil.wait_procs([first.process], 30)
        row("daemon", taken, watching.until_followed(second))
        third = Daemon(stack, folder, "third", *options, "--most", str(count))
        time.sleep(20.0)  # it has begun, and waits
        second.process.terminate()
        row("handed back", count, watching.until_followed(second, third))
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(asked.runs, asked.workers, Path(folder))
    if asked.json:
        print(json.dumps(rows))
        return
    print(f"{asked.runs} runs, --workers {asked.workers}; seconds until each run was followed again")
    print(f"{'killed':12}{'its runs':>9}{'p50 s':>8}{'last s':>8}{'twice':>7}")
    for one in rows:
        print(f"{one['case']:12}{one['of_it']:>9}{one['p50_s']:>8.1f}{one['last_s']:>8.1f}{one['twice']:>7}")


if __name__ == "__main__":
    main()
