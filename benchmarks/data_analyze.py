"""How fast data is indexed by vocabulary rarity, against DeepSpeed's DataAnalyzer on the same data, and what a step
of the sampler costs.

Both make the same index, each in a process of its own: count the tokens, measure each sample, write both directions.
Samples a second and core are samples over seconds of processor time, of all processes and threads together: what a busy
machine does not change. DeepSpeed's gets a vectorized metric function, batches of 10,000 (as Megatron-DeepSpeed's
scripts have it) and no log; starting Python and importing are not counted. The values are compared: DeepSpeed's are
whole numbers. With --json: the figures of the longest samples.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainer_hooks.data import CurriculumOrder, CurriculumSampler, Index, Pace
from trainer_hooks.data.analyze import analyze
from trainer_hooks.data.deepspeed_format import read_deepspeed, whole_numbers
from trainer_hooks.data.index import Manifest
from trainer_hooks.data.pool import Progress
from trainer_hooks.data.shards import Job, Rows

VOCABULARY = 50257
LENGTHS = {128: 320_000, 512: 80_000, 2048: 40_000}
"""Tokens → samples; 2048 is the paper's length for GPT-3."""

QUICK = {2048: 20_000}

BATCH, CURRICULUM_STEPS = 512, 110_000
"""The paper's, for GPT-3 1.3B."""


def make_tokens(path: Path, count: int) -> None:
    """Words as rare as words are: Zipf's law, a topic that drifts, so that samples differ."""
    draws = np.random.default_rng(0)
    with path.open("wb") as file:
        for begin in range(0, count, 1 << 20):
            size = min(1 << 20, count - begin)
            spread = np.repeat(1.1 + 0.4 * draws.random(size // 64 + 1), 64)[:size]
            ranks = np.minimum(draws.pareto(spread - 0.9) * 3, 1e9)
            file.write((ranks.astype(np.int64) % VOCABULARY).astype(np.uint16).data)


def make_any_tokens(path: Path, count: int) -> None:
    """Quickly: each as likely as any other."""
    draws = np.random.default_rng(0)
    with path.open("wb") as file:
        for begin in range(0, count, 1 << 24):
            file.write(draws.integers(0, VOCABULARY, min(1 << 24, count - begin), dtype=np.uint16).data)


def job(data: Path, seqlen: int, output: Path) -> Job:
    return Job(data=(data,), seqlen=seqlen, validation_share=0.001, pad=None, metric="voc", output=output)


@contextlib.contextmanager
def measured(found: dict[str, float]) -> Iterator[None]:
    """Seconds by the clock and of the processor, of this process and of those that it has waited for; peak RSS."""
    usages = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    before = [resource.getrusage(who) for who in usages]
    began = time.perf_counter()
    yield
    found["clock_s"] = time.perf_counter() - began
    after = [resource.getrusage(who) for who in usages]
    found["core_s"] = sum(a.ru_utime + a.ru_stime - b.ru_utime - b.ru_stime for a, b in zip(after, before, strict=True))
    found["rss_mb"] = max(a.ru_maxrss for a in after) / 1024


def ours(data: Path, seqlen: int, output: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    with measured(found):
        analyze(job(data, seqlen, output))
    return found


class _Dataset:
    """The rows for DeepSpeed's analyzer, one at a time: (width,) tokens, int64."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        import torch

        return torch.from_numpy(self._rows.tokens[number].astype(np.int64))


def theirs(data: Path, seqlen: int, output: Path) -> dict[str, float]:
    """DeepSpeed 0.19's DataAnalyzer, single worker: a pass that counts, a pass that measures, a reduce after each."""
    import torch
    from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import DataAnalyzer
    from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import MMapIndexedDataset
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    dataset = _Dataset(job(data, seqlen, output).rows())
    common: dict[str, Any] = {"dataset": dataset, "batch_size": 10_000, "metric_dtypes": [torch.int64]}
    found: dict[str, float] = {}
    with contextlib.redirect_stdout(sys.stderr), measured(found):
        counting = DataAnalyzer(
            metric_names=["total_vocab_freq"],
            metric_functions=[lambda rows: torch.bincount(rows.view(-1), minlength=VOCABULARY)],
            metric_types=["accumulate_value_over_samples"],
            save_path=str(output),
            **common,
        )
        counting.run_map()
        counting.run_reduce()
        counted = MMapIndexedDataset(f"{output}/total_vocab_freq/total_vocab_freq_metric_value", True)
        counts = counted[0].astype(np.float64)
        table = torch.from_numpy(-np.log(np.maximum(counts, 1) / counts.sum()))
        measuring = DataAnalyzer(
            metric_names=["voc"],
            metric_functions=[lambda rows: table[rows].sum(dim=1).round().to(torch.int64)],
            metric_types=["single_value_per_sample"],
            save_path=str(output),
            **common,
        )
        measuring.run_map()
        measuring.run_reduce()
    return found


def in_its_own_process(side: str, data: Path, seqlen: int, output: Path) -> dict[str, float]:
    output.mkdir(parents=True)
    command = [sys.executable, __file__, "--side", side, str(data), str(seqlen), str(output)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def difference(ours: Index, theirs: Index) -> float:
    """The largest of a value. SystemExit where it is more than rounding: theirs to whole numbers, ours to float32."""
    largest = float(np.abs(ours.values - theirs.values.astype(np.float64)).max())
    rounding = 0.5 + float(np.spacing(np.float32(ours.manifest.largest)))
    same = float(np.mean(whole_numbers(ours.values) == theirs.values))  # what lies in the middle may round either way
    if largest > rounding or same < 0.999:
        raise SystemExit(f"the values differ: by {largest} at most, and {1 - same:.2%} of them once they are rounded")
    return largest


def compare(folder: Path, lengths: dict[int, int]) -> list[dict[str, float]]:
    rows = []
    for seqlen, samples in lengths.items():
        data = folder / f"{seqlen}.bin"
        make_tokens(data, seqlen * samples)
        row: dict[str, float] = {"seqlen": seqlen, "samples": samples}
        for side in ("ours", "theirs"):
            found = in_its_own_process(side, data, seqlen, folder / side / str(seqlen))
            taken = len(job(data, seqlen, folder).rows())
            row |= {f"{side}_{name}": value for name, value in found.items()}
            row[f"{side}_samples_per_s_core"] = taken / found["core_s"]
        index = Index.load(folder / "ours" / str(seqlen) / "voc", job(data, seqlen, folder).rows().fingerprint)
        row["difference"] = difference(index, read_deepspeed(folder / "theirs" / str(seqlen) / "voc" / "voc"))
        rows.append(row)
        data.unlink()
    return rows


def memory(folder: Path, samples: int) -> list[dict[str, float]]:
    """Peak RSS at once and ten times the data."""
    rows = []
    for times in (1, 10):
        data = folder / f"memory-{times}.bin"
        make_any_tokens(data, 8 * samples * times)
        found = in_its_own_process("ours", data, 8, folder / f"memory-{times}")
        rows.append({"samples": samples * times, "mb": data.stat().st_size / 2**20, **found})
        data.unlink()
    return rows


def index_of(values: np.ndarray[Any, np.dtype[np.float32]], name: str) -> Index:
    order = np.argsort(values, kind="stable").astype(np.uint32)
    distinct, counts = np.unique(values, return_counts=True)
    manifest = Manifest(
        metric=name,
        corpus={},
        samples=len(values),
        distinct=len(distinct),
        dtype="float32",
        smallest=float(distinct[0]),
        largest=float(distinct[-1]),
    )
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Index(manifest=manifest, values=values, order=order, distinct=distinct, offsets=offsets)


def sampler(samples: int, steps: int) -> list[dict[str, Any]]:
    """What a step of 512 samples costs."""
    draws = np.random.default_rng(0)
    voc = index_of(draws.normal(300, 30, samples).astype(np.float32), "voc")
    length = index_of(draws.normal(300, 30, samples).astype(np.float32), "seqreo")

    def root(step: int) -> float:
        return 1 + 99 * min(step / CURRICULUM_STEPS, 1) ** 0.5

    by_voc = Pace(index=voc, difficulty=root, kind="percentile")
    by_length = Pace(index=length, difficulty=lambda step: 270 + 60 * step / CURRICULUM_STEPS, kind="value")
    cases = {
        "the pool is all": [Pace(index=voc, difficulty=lambda _: 100, kind="percentile")],
        "whole percents, sqrt": [Pace(index=voc, difficulty=lambda step: int(root(step)), kind="percentile")],
        "grows at every step": [by_voc],
        "two metrics, both grow": [by_voc, by_length],
    }
    rows = []
    for name, paces in cases.items():
        order, position, clock = CurriculumOrder(paces, 0, batch=BATCH), 0, []
        began = time.process_time()
        for _ in range(steps):
            at = time.perf_counter()
            _, position = order.take(position, BATCH)
            clock.append(time.perf_counter() - at)
        core = (time.process_time() - began) / steps
        state = order.state()
        began_again = time.perf_counter()
        CurriculumSampler(paces, order.reseeds, Progress.from_json(state["at"]))
        resumed = time.perf_counter() - began_again
        rows.append(
            {
                "case": name,
                "samples": samples,
                "steps": steps,
                "median_ms": float(np.median(clock)) * 1e3,
                "p99_ms": float(np.percentile(clock, 99)) * 1e3,
                "core_ms": core * 1e3,
                "segments": len(state["at"]["segments"]),
                "state_bytes": len(json.dumps(state)),
                "resume_ms": resumed * 1e3,
            }
        )
    return rows


def show(compared: list[dict[str, float]], grown: list[dict[str, float]], steps: list[dict[str, Any]]) -> None:
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} CPUs")
    print("\nvocabulary rarity of the same data, samples a second and core (by the clock), peak RSS")
    head = f"{'seqlen':>6} {'samples':>9} | {'ours':>9} {'(clock)':>9} {'MB':>5} | "
    print(head + f"{'DeepSpeed':>9} {'(clock)':>9} {'MB':>5} | ratio  largest difference")
    for row in compared:
        line = f"{row['seqlen']:>6} {row['samples']:>9,} | "
        for side in ("ours", "theirs"):
            by_clock = row["samples"] / row[f"{side}_clock_s"]
            line += f"{row[f'{side}_samples_per_s_core']:>9,.0f} {by_clock:>9,.0f} {row[f'{side}_rss_mb']:>5.0f} | "
        ratio = row["ours_samples_per_s_core"] / row["theirs_samples_per_s_core"]
        print(f"{line}{ratio:>5.1f}  {row['difference']:.4f}")
    print("\npeak RSS against the data's size (seqlen 8, one process; torch, which is imported, is 225 of it)")
    for row in grown:
        print(f"{row['samples']:>12,} samples {row['mb']:>6.0f} MB of data: {row['rss_mb']:.0f} MB")
    print(f"\nthe sampler, {BATCH} samples a step, ms a step")
    for row in steps:
        print(
            f"{row['case']:<24} {row['samples']:>12,} samples: median {row['median_ms']:.3f}, p99 {row['p99_ms']:.3f}, "
            f"core {row['core_ms']:.3f}; {row['segments']} segments, {row['state_bytes']:,} bytes of state, "
            f"{row['resume_ms']:.1f} ms to resume"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        side, data, seqlen, output = arguments.side
        print(json.dumps((ours if side == "ours" else theirs)(Path(data), int(seqlen), Path(output))))
        return
    with tempfile.TemporaryDirectory() as folder:
        compared = compare(Path(folder), QUICK if arguments.quick else LENGTHS)
        if arguments.json:
            longest = compared[-1]
            figures = {
                "samples_per_s_core": longest["ours_samples_per_s_core"],
                "deepspeed_samples_per_s_core": longest["theirs_samples_per_s_core"],
            }
            print(json.dumps(figures))
            return
        grown = memory(Path(folder), 100_000 if arguments.quick else 4_000_000)
    show(compared, grown, sampler(1_000_000 if arguments.quick else 10_000_000, 500 if arguments.quick else 2000))


if __name__ == "__main__":
    main()
