"""The instabilities and their healthy counterparts, on two draws of the data: trained, and read."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from early.grown_logits import judged, readings_of

from benchmarks.batched.cases import SCRATCH, Task, text
from benchmarks.batched.outcomes import Group, save
from benchmarks.curvature.measured import Measured
from benchmarks.curvature.scoring import Seen, apart

__all__ = ["DRAWS", "HEALTHY", "path_of", "perform", "seen_in", "training_of"]

DRAWS = (1, 2)

HEALTHY: Mapping[str, str] = {
    "logits": "LR / 4",
    "qknorm": "LR / 4",
    "early": "LR warmup x 8",
    "tiny": "LR / 4",
    "stale": "whole gradients",
}
"""Of each task a case of instabilities.py that was healthy there, in ten of ten where it was run."""


def perform(task: Task, case: str, draw: int, seeds: Sequence[int], folder: Path) -> None:
    """Trains all seeds of one case at once, and saves their curves. What is there is not made again."""
    path = path_of(folder, task, case, draw)
    if path.exists():
        return
    began = time.process_time()
    training = training_of(task, case, draw, seeds)
    training.train(tokens=SCRATCH[case].tokens(task))
    prior = np.full(len(seeds), math.inf)
    save(path, case, seeds, training.settings[0].lr, prior, training.recorded)
    print(f"{task.name}, {case}, draw {draw}: {time.process_time() - began:.0f} s of CPU", file=sys.stderr, flush=True)


def training_of(task: Task, case: str, draw: int, seeds: Sequence[int]) -> Measured:
    setting = SCRATCH[case].setting(task)
    return Measured(
        task.shape, text(task.corpus, task.shape.seqlen, draw), [setting] * len(seeds), seeds, batch=task.batch
    )


def path_of(folder: Path, task: Task, case: str, draw: int) -> Path:
    words = "".join(letter if letter.isalnum() else "-" for letter in case)
    return folder / f"{task.name}-{words}-draw{draw}.npz"


def seen_in(path: Path, task: str, draw: int) -> list[Seen]:
    """All seeds of one file of `runs.perform`."""
    group = Group.read(path)
    with np.load(path, allow_pickle=False) as saved:
        columns = {name: saved[name].astype(np.float64) for name in saved.files if saved[name].ndim == 2}
        steps, validated = saved["steps"], saved["validated"]
    found = []
    for run, (seed, onset) in enumerate(zip(group.seeds, group.onsets, strict=True)):
        mine = {name: column[:, run] for name, column in columns.items()}
        readings = readings_of(steps, validated, mine)
        without, with_them = (judged(readings, drop=drop) for drop in (True, False))
        known = with_them.onset if with_them.onset is not None else int(onset) if math.isfinite(onset) else None
        curvature = {
            name: list(zip(validated.tolist(), mine[name].tolist(), strict=True))
            for name in ("curvature_gradient", "curvature_update")
        }
        warned = (tuple(step for step, _ in said.warned) for said in (with_them, without))
        logits, early = warned
        found.append(
            Seen(
                task=task,
                draw=draw,
                seed=seed,
                steps=int(steps[-1]),
                onset=known,
                by_judge=with_them.onset is not None,
                curvature=curvature,
                others={"attention logits": logits, "variance alone": apart(without.variance), "early warning": early},
            )
        )
    return found
