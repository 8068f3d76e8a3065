"""Table 1 of Li et al. 2022 (arXiv:2212.03597), small: seqtru_voc, random-LTD and both, on all and on half of the data.

    python benchmarks/data_efficiency.py [--seeds 10] [--steps 600]

GPT of 4 layers x 64 (pre-LN), Python's library as bytes, 8 x 64 tokens, AdamW 0.9/0.95, cosine by tokens to 0. The
recipes are sentinel.vocabulary.pacing.presets, scaled to these steps: durations with the data, the peak LR with its
inverse, as in the paper (section 4.1), whose voc and random-LTD are not tuned either. A run ends by effective tokens:
those that a layer sees on average. All seeds of a case are trained at once; `difference` is paired by seed, to the
baseline on all of the data, with Student's 95 % interval; `time` is processor time, of the baseline's.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch

from benchmarks.batched.cases import text
from benchmarks.batched.intervals import of_mean, sign_test
from benchmarks.batched.training import Floats, Setting, Training
from sentinel.vocabulary.pacing import presets
from trainer_hooks.data import CurriculumOrder, Index, Pace
from trainer_hooks.data.analyze import analyze
from trainer_hooks.data.shards import Job
from trainer_hooks.gpt.model import Shape

SHAPE = Shape(layers=4, width=64, heads=4, seqlen=64)
BATCH, LR, WARMUP = 8, 3e-3, 20
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


CASES = tuple(
    Case(name=name, share=share, curriculum=curriculum, random_ltd=ltd)
    for share in (1.0, 0.5)
    for name, curriculum, ltd in (
        ("baseline", False, False),
        ("seqtru_voc", True, False),
        ("random-LTD", False, True),
        ("seqtru_voc + random-LTD", True, True),
    )
)


def trained(case: Case, steps: int, seeds: range, index: Index) -> dict[str, Floats | float]:
    """Final validation losses by seed, and what they took."""
    tokens = int(steps * case.share) * BATCH * SHAPE.seqlen
    setting = Setting(lr=LR / case.share, warmup=WARMUP, beta2=0.95, decay_tokens=tokens)
    rarity = presets.gpt_rarity(full_steps=steps, data_share=case.share)
    if case.curriculum:
        lengths = presets.gpt_seqlen(
            full_steps=steps, data_share=case.share, full_seqlen=SHAPE.seqlen, start=SEQTRU_START
        )
        setting = replace(setting, seqlen=lengths)
    if case.random_ltd:
        ltd = presets.gpt_random_ltd(full_steps=steps, data_share=case.share, full_seqlen=SHAPE.seqlen, start=LTD_START)
        setting = replace(setting, random_ltd=replace(ltd, multiple=8))

    def easiest_first(seed: int) -> CurriculumOrder:
        return CurriculumOrder([Pace(index=index, difficulty=rarity, kind="percentile")], seed, batch=BATCH)

    training = Training(
        SHAPE,
        text("code", SHAPE.seqlen),
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
        "loss": training.validated(),
        "seconds": took,
        "steps": training.state.step,
        "tokens": training.state.tokens,
    }


def table(made: Mapping[Case, Mapping[str, Floats | float]]) -> Iterator[str]:
    """A row per case, against the first."""
    baseline = made[CASES[0]]
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


def main() -> None:
    """Trains, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--steps", type=int, default=600, help="of the baseline on all of the data")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = {}
    with tempfile.TemporaryDirectory(prefix="data-efficiency-") as folder:
        job = Job(data=(), seqlen=SHAPE.seqlen, validation_share=0.02, pad=None, metric="voc", output=Path(folder))
        index = Index.load(analyze(job))
        for case in CASES:
            made[case] = trained(case, asked.steps, range(asked.seeds), index)
            print(f"{case.name}: {made[case]['seconds']:.0f} s", file=sys.stderr, flush=True)
    print(f"{date.today().isoformat()}, torch {torch.__version__}, {os.cpu_count()} CPUs, {asked.seeds} seeds, LR {LR}")
    print(*table(made), sep="\n")


if __name__ == "__main__":
    main()
