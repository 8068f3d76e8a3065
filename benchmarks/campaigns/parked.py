"""Recoveries in place under SIGKILL of the trainer, the watch, the command, from the decision to the first new steps.

Each run has a trainer that parks (tests/support/parking_trainer.py: no torch; checkpoints, event files). It is rolled
back by a person's command or, where its loss is nan, by a watch. One to three kills in a row are drawn: whom, and after
how many events of the incident log, or how long after RESUME, or after what time. After a kill of the command a watch
goes on, or the person types it again. 300 kills, in two processes; SIGTERM ends the campaign after the runs under way.

Wrong is: a byte of journals, logs, checkpoints or event files that is lost; two attempts that write at once; a run that
within ten minutes neither trains on from the target, by an attempt of the rollback, nor was stopped with a page; an
undo after which the old checkpoints, `latest`, event files or overrides.json are not as before. The commands are forked
from a process that has imported them: a kill in the midst of Python's imports shows nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.campaigns.table import Row, campaign
from tests.support.forked_commands import imported
from tests.support.killed_runs import Run, Trainer

KILLS, SHORT_KILLS, WORKERS = 300, 6, 2
PROGRAM = Path(__file__).parents[2] / "tests" / "support" / "parking_trainer.py"
LOAD_S, STEP_S = 0.2, 0.1
_TEMPLATE = "from pathlib import Path; from tests.e2e.live_trainer import build; build(Path({!r}))"


def command(folder: Path) -> list[str]:
    return [sys.executable, str(PROGRAM), str(folder)]


def alive(folder: Path) -> dict[int, str]:
    """The trainers of the run."""
    own = [os.fsencode(word) for word in command(folder)[1:]]
    return {pid: "trainer" for pid, words in processes() if words[1:3] == own}


def processes() -> Iterator[tuple[int, list[bytes]]]:
    """Each process and its words."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")


TRAINER = Trainer(
    command=command,
    alive=alive,
    at_once=1,
    trained_to="global_step40",
    rollback=("rollback", "--to", "global_step10", "--yes"),
    diverges=lambda folder: (folder / "nan1").touch(),
    ends=lambda folder: (folder / "end").touch(),
    victims=("trainer", "command", "command and trainer"),
    load_s=LOAD_S,
)


def worker(root: Path, of: Trainer, numbers: range, wanted: int) -> None:
    """Makes the runs of these numbers until there are as many kills as wanted."""
    kills = 0
    for number in numbers:
        if kills >= wanted or (root / "stop").exists():
            return
        folder, began_s = root / f"run{number}", time.monotonic()
        shutil.copytree(root / "template", folder)
        run = Run(folder=folder, of=of, chance=random.Random(number))  # noqa: S311 - the same draws each time
        end = run.made()
        kills += len(run.kills)
        told = {"run": number, "kills": run.kills, "end": end, "wrong": run.wrong, "s": time.monotonic() - began_s}
        with (root / f"told{numbers.start}.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")
        if not run.wrong:
            shutil.rmtree(folder)


def rows(short: bool) -> tuple[list[Row], list[str]]:
    """Kills by whom and in the midst of what, and how the runs ended."""
    with tempfile.TemporaryDirectory(prefix="parked-") as name:
        root = Path(name).resolve()
        subprocess.run([sys.executable, "-c", _TEMPLATE.format(str(root / "template"))], check=True, timeout=300)
        (root / "template" / "pace").write_text(json.dumps({"load_s": LOAD_S, "step_s": STEP_S}))
        return killed(root, TRAINER, SHORT_KILLS if short else KILLS, WORKERS)


def killed(root: Path, of: Trainer, wanted: int, workers: int) -> tuple[list[Row], list[str]]:
    """So many kills of runs that begin as copies of `root`/template. SIGTERM ends it after the runs under way."""
    imported()
    signal.signal(signal.SIGTERM, lambda *_: (root / "stop").touch())
    pids = []
    for first in range(workers):
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            try:
                worker(root, of, range(first, 10**6, workers), wanted // workers)
            except BaseException:  # noqa: BLE001 - this process is a copy of the campaign's, and may not go on as it
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    lost = [pid for pid in pids if os.waitpid(pid, 0)[1] != 0]
    told = [json.loads(line) for path in root.glob("told*.jsonl") for line in path.read_text().splitlines()]
    return table_of(told, wanted, [f"worker {pid} has failed" for pid in lost])


def table_of(told: list[dict[str, Any]], wanted: int, failed: list[str]) -> tuple[list[Row], list[str]]:
    kills = [kill for run in told for kill in run["kills"]]
    by = Counter((whom, doing) for whom, doing, _ in kills)
    wrong = [f"run {run['run']}: {sentence}" for run in told for sentence in run["wrong"]] + failed
    table: list[Row] = [(whom, doing, count) for (whom, doing), count in sorted(by.items())]
    table += [("all", f"in {len(told)} runs; wanted {wanted}", len(kills))]
    table += [("ended", end, count) for end, count in Counter(run["end"] for run in told).most_common()]
    return [*table, ("wrong", "", len(wrong))], wrong


if __name__ == "__main__":
    campaign(__doc__, ("killed", "after the event", "kills"), rows)
