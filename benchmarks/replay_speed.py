"""How fast a run's past is read, and in how much memory, from each of the formats in columns.

    python benchmarks/replay_speed.py [--quick] [--samples 10000000] [--json]

The run is made up: a loss that falls as a power of the step, with noise that gets smaller, and some spikes; grad norm,
learning rate, loss scale and batch size beside it. Journals have all the keys that `encode` writes. Each format is read
in a process of its own, on one core, with the files in the page cache; its peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from sentinel.adapters.sources.tables import open_columns
from sentinel.vocabulary.sample import Sample, encode

AT_A_TIME = 100_000
QUICK_SAMPLES = 200_000
SPIKES_EVERY = 40_000

Columns = dict[str, NDArray[np.float64] | NDArray[np.int64]]


def columns(n: int, seed: int = 0) -> Iterator[Columns]:
    """The run's columns, a stretch at a time."""
    rng = np.random.default_rng(seed)
    for first in range(0, n, AT_A_TIME):
        steps = np.arange(first + 1, min(first + AT_A_TIME, n) + 1)
        loss = 1.7 + 9.0 * steps**-0.22 + rng.normal(0, 0.02 + 0.2 * steps**-0.4)
        since_spike = steps % SPIKES_EVERY
        spike = np.where((steps > SPIKES_EVERY) & (since_spike < 60), np.exp(-since_spike / 15.0), 0.0)
        yield {
            "step": steps,
            "loss": loss + 2.5 * spike,
            "grad_norm": rng.lognormal(-1.0, 0.3, len(steps)) * (1 + 20 * spike),
            "lr": 6e-5 * np.minimum(1.0, steps / 3000),
            "loss_scale": np.full(len(steps), 65536.0),
            "batch_size": np.full(len(steps), 2048),
        }


def write_csv(path: Path, n: int) -> None:
    """As a spreadsheet or a logger's export has it."""
    stretches = columns(n)
    first = pa.table(next(stretches))
    with pyarrow.csv.CSVWriter(path, first.schema) as writer:
        writer.write_table(first)
        for stretch in stretches:
            writer.write_table(pa.table(stretch))


def write_parquet(path: Path, n: int) -> None:
    """In groups of a hundred thousand rows."""
    stretches = columns(n)
    first = pa.table(next(stretches))
    with pyarrow.parquet.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for stretch in stretches:
            writer.write_table(pa.table(stretch))


def write_jsonl(path: Path, n: int) -> None:
    """As a trainer writes it that logs a dict for each step."""
    with path.open("w", 1 << 20) as file:
        for stretch in columns(n):
            names, lists = [*stretch], [values.tolist() for values in stretch.values()]
            for row in zip(*lists, strict=True):
                file.write("{" + ", ".join(f'"{name}": {value!r}' for name, value in zip(names, row, strict=True)))
                file.write("}\n")


def write_journal(path: Path, n: int) -> None:
    """As our hook writes it. The line is put together here, since encode would take minutes, and compared with it."""
    compared = False
    with path.open("w", 1 << 20) as file:
        for stretch in columns(n):
            lists = [values.tolist() for values in stretch.values()]
            for step, loss, grad_norm, lr, loss_scale, batch in zip(*lists, strict=True):
                line = (
                    f'{{"kind": "sample", "attempt": 1, "global_step": {step}, "time_unix_s": {1.7e9 + 3.0 * step!r}, '
                    f'"loss": {loss!r}, "loss_ratio": 1.0, "adam_variance_l1": {loss * 1e3!r}, '
                    f'"adam_variance_max": {loss / 7!r}, "grad_norm": {grad_norm!r}, "update_norm": null, '
                    f'"loss_spread": null, "loss_scale": {loss_scale!r}, "lr": {lr!r}, "seqlen": 2048, '
                    f'"lr_warmup_steps": 3000, "skipped": false, "step_time_s": 3.0, "global_batch_samples": {batch}, '
                    f'"consumed_samples": {batch * step}, "consumed_tokens": {batch * step * 2048}, "epoch": null}}'
                )
                if not compared:
                    compared = _same_as_encode(line, step, loss, grad_norm, lr)
                file.write(line + "\n")


def _same_as_encode(line: str, step: int, loss: float, grad_norm: float, lr: float) -> bool:
    sample = Sample(
        attempt=1, global_step=step, time_unix_s=1.7e9 + 3.0 * step, loss=loss, loss_ratio=1.0,
        adam_variance_l1=loss * 1e3, adam_variance_max=loss / 7, grad_norm=grad_norm, loss_scale=65536.0, lr=lr,
        seqlen=2048, lr_warmup_steps=3000, step_time_s=3.0, global_batch_samples=2048, consumed_samples=2048 * step,
        consumed_tokens=2048 * step * 2048,
    )  # fmt: skip
    if encode(sample) != line:
        raise SystemExit("a journal's lines have changed: write_journal has to follow")
    return True


FORMATS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "csv": ("run.csv", write_csv),
    "parquet": ("run.parquet", write_parquet),
    "jsonl": ("run.jsonl", write_jsonl),
    "journal": ("0001.jsonl", write_journal),
}


def read(path: Path) -> dict[str, float | str]:
    """Reads the file and judges nothing; for a process of its own."""
    at = time.perf_counter()
    (source,) = open_columns(path, {})
    samples = sum(len(chunk) for chunk in source)
    wall_s = time.perf_counter() - at
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"format": source.format, "samples": samples, "samples_per_s": samples / wall_s, "peak_rss_mb": peak_mb}


def measured(path: Path) -> dict[str, float | str]:
    """The same in a fresh process, on one core."""
    one_core = {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--read", str(path)]
    if core := min(os.sched_getaffinity(0), default=None):
        command = ["taskset", "-c", str(core), *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | one_core)
    result: dict[str, float | str] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        print(json.dumps(read(given.read)))
        return
    samples = QUICK_SAMPLES if given.quick else given.samples
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, write in FORMATS.values():
            path = Path(folder, name)
            write(path, samples)
            rows.append(measured(path) | {"file_mb": path.stat().st_size / 1e6})
            path.unlink()
    if given.json:
        print(json.dumps({"read_only": rows}))
        return
    print(f"{'format':10} {'samples':>10} {'samples/s':>12} {'peak RSS':>10} {'file':>9}")
    for row in rows:
        print(
            f"{row['format']:10} {row['samples']:>10,} {row['samples_per_s']:>12,.0f} "
            f"{row['peak_rss_mb']:>7.0f} MB {row['file_mb']:>6.0f} MB"
        )


if __name__ == "__main__":
    main()
