"""How fast a run's past is read and judged, and in how much memory, from each of the formats that it may be left in.

    python benchmarks/replay_speed.py [--quick | --big] [--logs | --json]

What `sentinel replay` does with a path: every sample is read and judged. The runs are made up: a healthy one, with
noise and a few spikes, and a hard one, with heavy tails and many; with loss, grad norm and learning rate, or with all
signals that the judge reads. Journals have every key in either case.

Each row is a process of its own that keeps to one core, with one thread for each of the libraries, and the file in the
page cache. `samples_per_s` is of the core's time (CPU time of the process, imports left out), `samples_per_s_wall` by
the clock: on a machine that does nothing else they are the same. `read_s` is the part of the CPU time that reading
takes, `open_s` the CPU time before it, in which the format is recognised: `read_per_s` is of both, without the judge.
`loops`, the figure to compare on a busy machine: the CPU time of judging (without the reading) over that of a
plain Python loop that adds up every value of the same arrays; the two take turns, a chunk each.
Peak memory is that of the whole process. `arrays` are columns that are in memory already.

10^6 samples for each row, a tenth of it for a log of lines; --quick 10^5 and fewer rows; --big 10^7, for the memory.
`refusal_s`: the CPU time until a log of 4 MB without a training loss (MLPerf's) is refused.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from benchmarks.made_up.files import LOG_WRITERS, WRITERS, write_mlperf_log
from benchmarks.made_up.runs import columns
from sentinel.judge.readings import COLUMNS, Readings
from sentinel.judge.replay import Replay
from sentinel.judge.thresholds import Thresholds
from sentinel.sources.column_source import CHUNK_ROWS
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError

SAMPLES, QUICK_SAMPLES, BIG_SAMPLES = 10**6, 10**5, 10**7
OF_A_LOG = 10
"""A log of lines has one sample in so many."""
REFUSED_BYTES = 4_000_000

ARRAYS = "arrays"
COLUMN_FORMATS = ("csv", "parquet")
FORMATS = (ARRAYS, *WRITERS)
HEADLINE = ("few", "healthy")

Row = dict[str, Any]


def kinds(*, quick: bool, big: bool) -> list[tuple[str, str, str]]:
    """Format, signals and curve of each row."""
    if big:
        return [(name, *HEADLINE) for name in (*COLUMN_FORMATS, "journal")]
    harder = [(ARRAYS, "all", "healthy"), (ARRAYS, "few", "hard"), (ARRAYS, "all", "hard")]
    if not quick:
        harder += [(name, "all", "healthy") for name in (*COLUMN_FORMATS, "jsonl", "journal")]
        harder += [(name, "few", "hard") for name in WRITERS if name not in LOG_WRITERS]
    return sorted([*((name, *HEADLINE) for name in FORMATS), *harder], key=lambda kind: FORMATS.index(kind[0]))


def judged(chunks: Iterable[Readings]) -> Row:
    """Reads and judges all of it; for a process of its own."""
    replay = Replay(Thresholds())
    read_s = loop_s = loop_wall_s = 0.0
    started, started_cpu = time.perf_counter(), cpu_now()
    at = started_cpu
    for readings in chunks:
        read_s += cpu_now() - at
        replay.push(readings)
        at, at_wall = cpu_now(), time.perf_counter()
        plain_loop(readings)
        loop_s, loop_wall_s = loop_s + cpu_now() - at, loop_wall_s + time.perf_counter() - at_wall
        at = cpu_now()
    read_s += cpu_now() - at  # a process that unpacks for this one is counted when it has ended
    replay.end()
    cpu_s, wall_s = cpu_now() - started_cpu - loop_s, time.perf_counter() - started - loop_wall_s
    return {
        "samples": replay.samples,
        "events": len(replay.events),
        "samples_per_s": replay.samples / cpu_s,
        "samples_per_s_wall": replay.samples / wall_s,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "read_s": read_s,
        "loop_s": loop_s,
        "loops": (cpu_s - read_s) / loop_s,
        "peak_rss_mb": peak_rss_mb(),
    }


def plain_loop(readings: Readings) -> float:
    """The least that Python does with the same arrays: each value once, row by row."""
    total = 0.0
    for row in zip(readings.steps.tolist(), *(c.tolist() for c in readings.columns.values()), strict=True):
        for value in row:
            total += value
    return total


def cpu_now() -> float:
    """Seconds of CPU time, of this process and of those that it has started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def peak_rss_mb() -> float:
    """The most memory that this process has had; where the system tells, without what it was forked from had."""
    status = Path("/proc/self/status")
    if status.is_file():
        (kib,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(kib) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def in_memory(samples: int, signals: str, curve: str) -> Iterator[Readings]:
    """The run as arrays, in chunks as a reader gives them."""
    stretches = list(columns(samples, signals, curve))
    whole = {name: np.concatenate([s[name] for s in stretches]) for name in stretches[0]}
    steps, found = whole["step"], {name: whole[name].astype(np.float64) for name in COLUMNS if name in whole}
    chunks = [
        Readings(
            attempt=1, steps=steps[i : i + CHUNK_ROWS], columns={n: c[i : i + CHUNK_ROWS] for n, c in found.items()}
        )
        for i in range(0, samples, CHUNK_ROWS)
    ]
    return iter(chunks)


def measure(what: str) -> Row:
    """What a child process is started for: a file, or the arrays of `samples,signals,curve`."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if not Path(what).exists():
        samples, signals, curve = what.split(",")
        return with_opening(judged(in_memory(int(samples), signals, curve)), 0.0)
    started = cpu_now()
    try:
        (source,) = open_sources(Path(what), {})
    except ConfigError:
        return {"refusal_s": cpu_now() - started}
    open_s = cpu_now() - started
    return with_opening(judged(source), open_s)


def with_opening(row: Row, open_s: float) -> Row:
    """The row with the time before the first sample was read."""
    return row | {"open_s": open_s, "read_per_s": row["samples"] / (open_s + row["read_s"])}


def in_a_child(what: str) -> Row:
    """`measure` in a fresh process."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, __file__, "--measure", what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | one_thread)
    row: Row = json.loads(done.stdout)
    return row


def measured(name: str, signals: str, curve: str, samples: int, folder: Path) -> Row:
    """The row of a kind; its file is there for as long as it is looked at."""
    head: Row = {"format": name, "signals": signals, "curve": curve}
    if name == ARRAYS:
        return head | in_a_child(f"{samples},{signals},{curve}") | {"file_mb": None}
    file_name, write = WRITERS[name]
    path = folder / file_name
    write(path, columns(samples // OF_A_LOG if name in LOG_WRITERS else samples, signals, curve))
    try:
        return head | in_a_child(str(path)) | {"file_mb": path.stat().st_size / 1e6}
    finally:
        path.unlink()


def refused(folder: Path) -> float:
    """Seconds of CPU time until a log without a loss is refused."""
    path = folder / "mlperf.log"
    write_mlperf_log(path, REFUSED_BYTES)
    return float(in_a_child(str(path))["refusal_s"])


def document(rows: list[Row], refusal_s: float) -> dict[str, Any]:
    """What --json prints: the slower of the two formats in columns, the larger memory of them, and every row."""
    headline = [r for r in rows if r["format"] in COLUMN_FORMATS and (r["signals"], r["curve"]) == HEADLINE]
    return {
        "samples_per_s": min(r["samples_per_s"] for r in headline),
        "samples_per_s_wall": min(r["samples_per_s_wall"] for r in headline),
        "loops": max(r["loops"] for r in headline),
        "peak_rss_mb": max(r["peak_rss_mb"] for r in headline),
        "samples": headline[0]["samples"],
        "refusal_s": refusal_s,
        "rows": rows,
    }


def table(rows: list[Row]) -> str:
    """The rows for reading."""
    head = (
        "format",
        "signals",
        "curve",
        "samples",
        "events",
        "samples/s",
        "by clock",
        "loops",
        "reading",
        "read/s",
        "peak RSS",
        "file",
    )
    lines = ["{:16}{:8}{:9}{:>11}{:>8}{:>11}{:>10}{:>7}{:>9}{:>11}{:>10}{:>9}".format(*head)]
    for r in rows:
        file_mb = "" if r["file_mb"] is None else f"{r['file_mb']:.0f} MB"
        lines.append(
            f"{r['format']:16}{r['signals']:8}{r['curve']:9}{r['samples']:>11,}{r['events']:>8,}"
            f"{r['samples_per_s']:>11,.0f}{r['samples_per_s_wall']:>10,.0f}{r['loops']:>7.1f}"
            f"{r['read_s'] / r['cpu_s']:>9.0%}{r['read_per_s']:>11,.0f}{r['peak_rss_mb']:>7.0f} MB{file_mb:>9}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true")
    size.add_argument("--big", action="store_true")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    what.add_argument("--logs", action="store_true", help="only the arrays and the logs of lines, of a healthy run")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        print(json.dumps(measure(asked.measure)))
        return
    samples = QUICK_SAMPLES if asked.quick else BIG_SAMPLES if asked.big else SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        asked_kinds = [(name, *HEADLINE) for name in (ARRAYS, *LOG_WRITERS)]
        asked_kinds = asked_kinds if asked.logs else kinds(quick=asked.quick, big=asked.big)
        rows = [measured(*kind, samples, Path(folder)) for kind in asked_kinds]
        refusal_s = refused(Path(folder))
    print(json.dumps(document(rows, refusal_s)) if asked.json else table(rows))
    if not asked.json:
        print(f"a log of {REFUSED_BYTES / 1e6:.0f} MB without a loss is refused after {refusal_s:.2f} s")


if __name__ == "__main__":
    main()
