"""Table 1 of Li et al. 2022 (arXiv:2212.03597), small: seqtru_voc, random-LTD and both, on all and on part of the data.

    python benchmarks/data_efficiency.py [--seeds 10] [--steps 600] [--width 64] [--lr 3e-3] [--shares 1 0.5]

GPT of 4 layers (pre-LN), Python's library as bytes, 8 x 64 tokens, AdamW 0.9/0.95, cosine by tokens to 0. The
recipes are sentinel.vocabulary.pacing.presets, scaled to these steps: durations with the data, the peak LR with its
inverse, as in the paper (section 4.1), whose voc and random-LTD are not tuned either. A run ends by effective tokens:
those that a layer sees on average. All seeds of a case are trained at once; `difference` is paired by seed, to the
baseline on all of the data, with Student's 95 % interval; `time` is processor time, of the baseline's.

`at equal quality`: the share of the data (and of the time) at which a case reaches the mean loss of the baseline on all
of it: between two shares that were trained, by the logarithm of the share; 95 % intervals by drawing the seeds again.
Ctrl-C prints what there is; with --runs a second call goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch

from benchmarks.batched.cases import text
from benchmarks.batched.intervals import of_mean, sign_test
from benchmarks.batched.training import Floats, Setting, Training
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.pacing import presets
from trainer_hooks.data import CurriculumOrder, Index, Pace
from trainer_hooks.data.analyze import analyze
from trainer_hooks.data.shards import Job
from trainer_hooks.gpt.model import Shape

SEQLEN, BATCH, WARMUP = 64, 8, 20
HEAD = 16
"""Width of an attention head."""

DRAWS = 2000
SEQTRU_START, LTD_START = 8, 8
"""The papers' 80 and 128 of 2048 tokens would be 2 and 4 of 64; 8 is the shortest that a schedule takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row."""

    name: str
    share: float
    """Of the data."""

    curriculum: bool = False
    """seqtru_voc: length and vocabulary rarity together."""

    random_ltd: bool = False


Made = Mapping[Case, Mapping[str, Any]]


def cases(shares: Sequence[float]) -> list[Case]:
    """The first is what all are compared with."""
    return [
        Case(name=name, share=share, curriculum=curriculum, random_ltd=ltd)
        for share in shares
        for name, curriculum, ltd in (
            ("baseline", False, False),
            ("seqtru_voc", True, False),
            ("random-LTD", False, True),
            ("seqtru_voc + random-LTD", True, True),
        )
    ]


def trained(case: Case, asked: argparse.Namespace, index: Index) -> dict[str, Any]:
    """Final validation losses by seed, and what they took."""
    steps, seeds = asked.steps, range(asked.seeds)
    tokens = int(steps * case.share) * BATCH * SEQLEN
    setting = Setting(lr=asked.lr / case.share, warmup=WARMUP, beta2=0.95, decay_tokens=tokens)
    rarity = presets.gpt_rarity(full_steps=steps, data_share=case.share)
    if case.curriculum:
        lengths = presets.gpt_seqlen(full_steps=steps, data_share=case.share, full_seqlen=SEQLEN, start=SEQTRU_START)
        setting = replace(setting, seqlen=lengths)
    if case.random_ltd:
        ltd = presets.gpt_random_ltd(full_steps=steps, data_share=case.share, full_seqlen=SEQLEN, start=LTD_START)
        setting = replace(setting, random_ltd=replace(ltd, multiple=8))

    def easiest_first(seed: int) -> CurriculumOrder:
        return CurriculumOrder([Pace(index=index, difficulty=rarity, kind="percentile")], seed, batch=BATCH)

    training = Training(
        Shape(layers=4, width=asked.width, heads=asked.width // HEAD or 1, seqlen=SEQLEN),
        text("code", SEQLEN),
        [setting] * len(seeds),
        seeds,
        batch=BATCH,
        validate_every=10**9,
        validation_samples=256,
        order=easiest_first if case.curriculum else None,
    )
    began = time.process_time()
    training.train(tokens=tokens)
    took = time.process_time() - began
    return {
        "loss": training.validated().tolist(),
        "seconds": took,
        "steps": training.state.step,
        "tokens": training.state.tokens,
    }


def table(made: Made) -> Iterator[str]:
    """A row per case, against the first."""
    baseline = next(iter(made.values()))
    yield (
        f"{'case':26}{'data':>6}{'steps':>7}{'tokens':>9}{'time':>6}{'validation loss':>17}"
        f"{'difference to the baseline on all data':>42}{'better':>8}{'p':>8}"
    )
    for case, row in made.items():
        line = (
            f"{case.name:26}{case.share:>6.0%}{row['steps']:>7}{row['tokens']:>9}"
            f"{row['seconds'] / baseline['seconds']:>6.2f}{np.mean(row['loss']):>17.4f}"
        )
        if row is not baseline:
            difference = np.asarray(row["loss"]) - np.asarray(baseline["loss"])
            found, better = of_mean(difference), int((difference < 0).sum())
            said = f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"
            line += f"{said:>42}{f'{better}/{len(difference)}':>8}{sign_test(better, len(difference) - better):>8.2g}"
        yield line


def at_equal_quality(made: Made) -> Iterator[str]:
    """A row per method: the share of data and time at which it is as good as the baseline on all of the data."""
    best = np.asarray(next(iter(made.values()))["loss"])
    seconds = float(next(iter(made.values()))["seconds"])
    yield f"{'at equal quality':26}{'share of the data':>36}{'share of the time':>36}"
    for name in [case.name for case in made if case.share == 1.0][1:]:
        rows = sorted(((case.share, row) for case, row in made.items() if case.name == name), key=lambda pair: pair[0])
        losses = np.array([row["loss"] for _, row in rows])
        drawn = np.random.default_rng(0).integers(len(best), size=(DRAWS, len(best)))
        line = f"{name:26}"
        for shares in ([share for share, _ in rows], [float(row["seconds"]) / seconds for _, row in rows]):
            value = reached(shares, losses.mean(axis=1), float(best.mean()))
            found = [reached(shares, losses[:, seeds].mean(axis=1), float(best[seeds].mean())) for seeds in drawn]
            low, high = np.quantile(found, [0.025, 0.975], method="nearest")
            told = [_share(v, min(shares)) for v in (value, low, high)]
            line += f"{f'{told[0]} ({told[1]} to {told[2]})':>36}"
        yield line


def reached(shares: Sequence[float], losses: Floats, wanted: float) -> float:
    """The smallest share at which the loss is no larger than this, inf where it is larger at all of them; the smallest
    of the shares, which rise, where less than that would do."""
    if losses[0] <= wanted:
        return shares[0]
    for (a, before), (b, after) in pairwise(zip(shares, losses, strict=True)):
        if after <= wanted:
            return float(a * (b / a) ** ((before - wanted) / (before - after)))
    return math.inf


def _share(value: float, smallest: float) -> str:
    if math.isinf(value):
        return "not reached"
    return f"<= {value:.0%}" if value <= smallest else f"{value:.0%}"


def main() -> None:
    """Trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--steps", type=int, default=600, help="of the baseline on all of the data")
    parser.add_argument("--width", type=int, default=64, help="of the model; a head has 16")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak on all of the data")
    parser.add_argument("--shares", type=float, nargs="+", default=[1.0, 0.5], help="of the data; 1 first")
    parser.add_argument("--runs", type=Path, help="JSON lines: cases that are there are not trained again")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = asked.runs.read_text().splitlines() if asked.runs is not None and asked.runs.exists() else []
    kept = {(row["name"], row["share"]): row for row in map(load_object, lines)}
    with tempfile.TemporaryDirectory(prefix="data-efficiency-") as folder:
        job = Job(data=(), seqlen=SEQLEN, validation_share=0.02, pad=None, metric="voc", output=Path(folder))
        index = Index.load(analyze(job))
        asked_for = cases(asked.shares)
        made = {case: kept[case.name, case.share] for case in asked_for if (case.name, case.share) in kept}
        with contextlib.suppress(KeyboardInterrupt):
            for case in asked_for:
                if case not in made:
                    made[case] = row = trained(case, asked, index)
                    if asked.runs is not None:
                        with asked.runs.open("a") as file:
                            file.write(dump_json({"name": case.name, "share": case.share, **row}) + "\n")
                print(f"{case.name}, {case.share:.0%}: {made[case]['seconds']:.0f} s", file=sys.stderr, flush=True)
    command = " ".join(["python", "benchmarks/data_efficiency.py", *sys.argv[1:]])
    print(f"{command}\n{date.today().isoformat()}, torch {torch.__version__}, {os.cpu_count()} CPUs")
    print(*table(made), "", *at_equal_quality(made), sep="\n")


if __name__ == "__main__":
    main()
