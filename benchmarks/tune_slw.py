"""The search for a pacing against a full grid: whether both answer the same, and at which share of the steps.

The task is small and real: the reference trainer's tiny GPT (4 layers, 64 wide, 128 tokens, batch 16) on 32 samples of
text, so few that a model that stays at short lengths for long learns their beginnings by heart: its validation
perplexity at full length rises to several times its best, the more the longer T is. That is one of the two ways in
which a T is too long (the paper's: "heavily overfitted for that length"); chaos at a high learning rate is the other,
and there no search can agree with anything. Every cell of the grid is trained up to the horizon, as a grid is; beside
it stands what it would have cost with each cell stopped at its fluctuation.

Three searches on the same grid: one that begins as `sentinel tune slw` does by itself; one whose first probes are at
the longest T and whose beginning is long, so that the start has to be raised; and one at the longest start alone, where
little is overfitted and most perplexities come near to the limit without being far above it.
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.adapters.journal import Journals
from sentinel.cli.tune import search
from sentinel.config import load_config
from sentinel.judge.history import History
from sentinel.lab.tune.reading import ProbeReading, reading_of
from sentinel.lab.tune.report import TuningReport
from sentinel.lab.tune.search import Pacing, ProbeSeen, Space, answer_of_the_grid
from sentinel.vocabulary.numbers import dump_json

LR_WARMUP = 10
HORIZON = 60
VALIDATE_EVERY = 4
LIMIT = 1.3
STARTS = (8, 16, 32, 64)
DURATIONS = (20, 40, 80, 120, 160, 240, 320, 640)
STEPS_OF_A_RUN = 400

TEXT_BYTES = 8200
"""32 samples to train on, and as many to validate on."""


@dataclass(frozen=True)
class Way:
    """How a search begins."""

    name: str
    first_duration: int
    beginning_steps: int
    starts: tuple[int, ...] = STARTS


WAYS = (
    Way("as by default", 40, LR_WARMUP),
    Way("from the longest T, a long beginning", 640, 36),
    Way("of start 64 alone", 40, LR_WARMUP, (64,)),
)


def text() -> str:
    """The same on every machine that has this Python: the beginning of one of its modules."""
    return inspect.getsource(argparse)[:TEXT_BYTES]


def trainer(data: Path) -> list[str]:
    """The run's own command."""
    words = f"--preset tiny --seqlen 128 --global-batch 16 --lr 4e-3 --lr-warmup {LR_WARMUP} --steps {STEPS_OF_A_RUN}"
    more = f"--seed 0 --validation-share 0.5 --validation-batches 4 --data {data}"
    return [sys.executable, "-m", "trainer_hooks.gpt", *words.split(), *more.split()]


def cell(folder: Path, pacing: Pacing) -> ProbeReading:
    """One cell of the grid, trained up to the horizon."""
    folder.mkdir()
    options = {
        "--steps": HORIZON,
        "--lr-decay": STEPS_OF_A_RUN,
        "--validate-every": VALIDATE_EVERY,
        "--seqlen-start": pacing.start,
        "--seqlen-warmup-steps": pacing.total_steps,
        "--state-dir": folder,
        "--save": folder / "checkpoints",
    }
    command = [*trainer(folder.parent / "text.txt"), *(f"{k}={v}" for k, v in options.items())]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    return reading_of(History(Journals(folder).poll()).latest)


def configuration(folder: Path, way: Way, durations: tuple[int, ...]) -> Path:
    """The run's TOML, as a person would write it."""
    command = ", ".join(dump_json(word) for word in trainer(folder / "text.txt"))
    path = folder / "small.toml"
    path.write_text(
        f'[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[launcher]\ncommand = [{command}]\n'
        f"[watch]\npoll_interval_s = 0.1\n[tune]\nstarts = {list(way.starts)}\ndurations = {list(durations)}\n"
        f"first_duration = {way.first_duration}\nbeginning_steps = {way.beginning_steps}\n"
        f"horizon_steps = {HORIZON}\nvalidate_every = {VALIDATE_EVERY}\nfluctuation = {LIMIT}\n"
    )
    return path


def measured(
    folder: Path, ways: tuple[Way, ...], starts: tuple[int, ...], durations: tuple[int, ...]
) -> dict[str, Any]:
    (folder / "text.txt").write_text(text())
    pacings = [Pacing(start, duration) for start in starts for duration in durations]
    began = time.monotonic()
    with ThreadPoolExecutor(max_workers=2) as two:
        read = dict(
            zip(pacings, two.map(lambda p: cell(folder / f"grid-{p.start}-{p.total_steps}", p), pacings), strict=True)
        )
    wall_s = time.monotonic() - began
    seen = {pacing: reading.seen(LIMIT, HORIZON) for pacing, reading in read.items()}
    steps = sum(reading.steps for reading in read.values())
    stopped = sum(s.fluctuated_at or HORIZON for s in seen.values())
    grid = {"cells": len(pacings), "steps": steps, "steps_if_stopped": stopped, "wall_s": round(wall_s, 1)}
    rows = [
        {
            "start": p.start,
            "total_steps": p.total_steps,
            "fluctuated_at": seen[p].fluctuated_at,
            "max": r.curve.largest_ratio(),
        }
        for p, r in read.items()
    ]
    searches = []
    for way in ways:
        config = load_config(configuration(folder, way, durations))
        began = time.monotonic()
        report = search(config, folder / f"search-{len(searches)}", parallel=1, say=lambda _: None)
        searches.append(compared(way, report, read, seen) | {"wall_s": round(time.monotonic() - began, 1)})
    return {"horizon_steps": HORIZON, "grid": grid, "cells": rows, "searches": searches}


def compared(
    way: Way, report: TuningReport, read: dict[Pacing, ProbeReading], seen: dict[Pacing, ProbeSeen]
) -> dict[str, Any]:
    """The two answers, and the search's steps beside those of the cells that it had to choose from."""
    space: Space = report.task.space
    cells = [Pacing(start, duration) for start in space.starts for duration in space.durations]
    steps = sum(read[cell].steps for cell in cells)
    stopped = sum(seen[cell].fluctuated_at or HORIZON for cell in cells)
    answer = answer_of_the_grid(space, seen)
    return {
        "search": way.name,
        "grid_answer": str(answer),
        "search_answer": str(report.chosen),
        "same": answer == report.chosen,
        "probes": [f"{r.start}/{r.total_steps}: {r.verdict}, {r.steps} steps" for r in report.probes],
        "steps": report.steps,
        "share_of_grid_steps": report.steps / steps,
        "share_if_grid_stopped": report.steps / stopped,
        "monotone": report.monotone,
        "curves_equal_the_grids": all(
            dict(read[Pacing(r.start, r.total_steps)].curve.points).items() >= dict(r.validations).items()
            for r in report.probes
        ),
        "share_of_one_full_run": report.share_of_full_run,
    }


def shown(result: dict[str, Any]) -> Iterator[str]:
    durations = sorted({row["total_steps"] for row in result["cells"]})
    upto = f"up to step {result['horizon_steps']}"
    yield f"The grid: largest validation perplexity / best before, {upto} (@ first step above {LIMIT})"
    yield "start  " + "".join(f"{'T ' + str(t):>13}" for t in durations)
    for start in sorted({row["start"] for row in result["cells"]}):
        cells = {row["total_steps"]: row for row in result["cells"] if row["start"] == start}
        yield f"{start:5}  " + "".join(
            f"{cells[t]['max']:>8.2f}" + (f" @{cells[t]['fluctuated_at']:<3}" if cells[t]["fluctuated_at"] else "     ")
            for t in durations
        )
    grid = result["grid"]
    stopped = f"{grid['steps_if_stopped']} with each cell stopped"
    yield f"{grid['cells']} cells, {grid['steps']} steps ({stopped}), {grid['wall_s']} s"
    for s in result["searches"]:
        yield ""
        yield f"Search {s['search']}:"
        yield f"  grid says   {s['grid_answer']}"
        yield f"  search says {s['search_answer']}   ({'the same' if s['same'] else 'NOT THE SAME'})"
        yield f"  {len(s['probes'])} probes: {'; '.join(s['probes'])}"
        yield (
            f"  {s['steps']} steps: {s['share_of_grid_steps']:.1%} of the grid's"
            f" ({s['share_if_grid_stopped']:.1%} of one whose cells are stopped), {s['wall_s']} s"
        )
        yield f"  monotone as far as it saw: {s['monotone']}; its curves are the grid's: {s['curves_equal_the_grids']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two starts, four durations, the first search")
    parser.add_argument("--json", action="store_true", dest="as_json")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    starts, durations, ways = (
        (STARTS[:2], (40, 80, 320, 640), (Way("as by default", 40, LR_WARMUP, STARTS[:2]),))
        if asked.quick
        else (STARTS, DURATIONS, WAYS)
    )
    with tempfile.TemporaryDirectory(prefix="tune-slw-") as folder:
        result = measured(Path(folder), ways, starts, durations)
    if asked.as_json:
        print(dump_json(result))
    else:
        print(*shown(result), sep="\n")


if __name__ == "__main__":
    main()
