"""How fast a TensorBoard folder is cut, against a rewriting loop over TensorBoard's own reader and a plain copy.

    python benchmarks/tensorboard_cut.py [--quick] [--gigabytes 10] [--json]

The folder is like Megatron's: per step 30 scalars, each on three axes; every 100 steps two dozen histograms; the
arguments as text at the beginning of each file. Ten files, one for each attempt; the cut is in the ninth. (The first
eight are copies of one another: that saves minutes of writing and changes nothing for who reads them.)

- `ours, first look`: a process that knows nothing of the folder looks at it (`last_step`) and cuts it.
- `ours, known folder`: the same, where the files had been read before and the index was written down.
- `ours, one file`: the worst case, a folder of a single file, which spans the cut, at the first look.
- `rewriting loop`: each record through RawEventFileLoader, Event.FromString and RecordWriter, on a file of the same
  kind, into one file for what stays and one for what goes; it makes nothing durable. Done three times, between the
  others; the best one counts.
- `copy`: shutil.copyfile and fsync, the floor for whatever reads and writes each byte.

Each of ours is measured in a process of its own, whose peak memory is told too. `mb_per_s` in the JSON is that of
`ours, first look`; files are in the page cache for everybody.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c

from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.overrides import Anchor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto
    from tensorboard.summary.writer.record_writer import RecordWriter

FILES = 10
SAMPLES_PER_STEP, TOKENS_PER_STEP = 1024, 2048 * 1024
TAGS = [f"lm-loss-training/lm loss of part {n}" for n in range(10)] + [
    f"optimizer/variance of layer group {n}" for n in range(20)
]
BYTES_PER_STEP = 7_570
"""Of what `events` gives; measured."""


def events(steps: range, seed: int) -> Iterator[Event]:
    """What one attempt writes."""
    rng = random.Random(seed)  # noqa: S311 - values to look at
    yield Event(wall_time=1.7e9, file_version="brain.Event:2")
    text = Event(wall_time=1.7e9, step=steps.start)
    text.summary.value.add(tag="arguments/text_summary").tensor.string_val.append(b"--lr 6e-5 " * 400)
    yield text
    for step in steps:
        at = 1.7e9 + step * 3.1
        for tag in TAGS:
            value = rng.random()
            for suffix, x in (
                ("", step),
                (" vs samples", step * SAMPLES_PER_STEP),
                (" vs tokens", step * TOKENS_PER_STEP),
            ):
                event = Event(wall_time=at, step=x)
                event.summary.value.add(tag=tag + suffix, simple_value=value)
                yield event
        if step % 100 == 0:
            buckets = [rng.random() for _ in range(30)]
            for layer in range(24):
                event = Event(wall_time=at, step=step)
                histogram = HistogramProto(min=0, max=1, num=30, bucket=buckets, bucket_limit=buckets)
                event.summary.value.add(tag=f"layer {layer}/weights", histo=histogram)
                yield event


def write(path: Path, steps: range) -> int:
    """One event file; returns its bytes. By hand: TensorBoard's own writer would take an hour for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", 1 << 20) as file:
        for event in events(steps, steps.start):
            data = event.SerializeToString()
            header = struct.pack("<Q", len(data))
            file.write(header + _masked(header) + data + _masked(data))
    return path.stat().st_size


def _masked(data: bytes) -> bytes:
    value = google_crc32c.value(data)
    return struct.pack("<I", (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def write_folder(folder: Path, files: int, steps_each: int) -> int:
    """A run of as many attempts; returns its bytes."""
    paths = [folder / f"events.out.tfevents.{1700000000 + n * 72000}.node{n}.4711.0" for n in range(files)]
    for n, path in enumerate(paths):
        if 0 < n < 8:
            shutil.copyfile(paths[0], path)
        else:
            write(path, range(1 + n * steps_each, 1 + (n + 1) * steps_each))
    return sum(path.stat().st_size for path in paths)


def anchor(step: int) -> Anchor:
    """The position at a step."""
    return Anchor(global_step=step, consumed_samples=step * SAMPLES_PER_STEP, consumed_tokens=step * TOKENS_PER_STEP)


def cut(folder: Path, step: int, index: Path | None) -> dict[str, float]:
    """Looks and cuts, and says how long it took and how much memory this process has had at most."""
    began = time.perf_counter()
    board = TensorBoard(folder, index)
    board.last_step()
    looked = time.perf_counter()
    report = board.cut(anchor(step), incident="incident-1", rollback="incident-1-r1")
    ended = time.perf_counter()
    assert not report.sentences(), report  # noqa: S101
    return {
        "look_s": looked - began,
        "cut_s": ended - looked,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def cut_elsewhere(folder: Path, step: int, index: Path | None = None) -> dict[str, float]:
    """`cut` in a process of its own."""
    command = [sys.executable, __file__, "--cut", str(folder), str(step), str(index or "")]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name: float(value) for name, value in json.loads(said.stdout).items()}


def rewrite(path: Path, kept: Path, cut_off: Path, step: int) -> None:
    """What a person would write."""
    limits = {" vs samples": step * SAMPLES_PER_STEP, " vs tokens": step * TOKENS_PER_STEP}
    with kept.open("wb") as keeps, cut_off.open("wb") as cuts:
        stays, goes = RecordWriter(keeps), RecordWriter(cuts)
        for raw in RawEventFileLoader(str(path)).Load():
            event = Event.FromString(raw)
            tag = event.summary.value[0].tag if event.summary.value else ""
            limit = next((limit for suffix, limit in limits.items() if tag.endswith(suffix)), step)
            (stays if event.step <= limit else goes).write(raw)


def copy(path: Path, to: Path) -> None:
    """The floor."""
    shutil.copyfile(path, to)
    with to.open("rb+") as file:
        os.fsync(file.fileno())


def seconds(what: Callable[[], None]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def measure(room: Path, gigabytes: float, loop_steps: int) -> list[dict[str, float | str]]:
    """All rows of the table."""
    steps_each = max(20, int(gigabytes * 1e9 / FILES / BYTES_PER_STEP))
    at = steps_each * 8 + steps_each // 2
    folder = room / "run" / "tb"
    size = write_folder(folder, FILES, steps_each)
    rows: list[dict[str, float | str]] = []

    def row(name: str, n_bytes: int, took_s: float, **more: float) -> None:
        rows.append({"what": name, "mb": n_bytes / 1e6, "s": took_s, "mb_per_s": n_bytes / 1e6 / took_s, **more})

    small, loops = room / "small" / "events.out.tfevents.1", []
    small_size = write(small, range(1, loop_steps))

    def loop() -> None:
        loops.append(seconds(lambda: rewrite(small, room / "kept", room / "cut-off", loop_steps // 2)))

    loop()
    first = cut_elsewhere(folder, at)
    row("ours, first look", size, first["look_s"] + first["cut_s"], **first)
    TensorBoard(folder).restore("incident-1", "incident-1-r1")
    index = room / "index.json"
    TensorBoard(folder, index).last_step()
    known = cut_elsewhere(folder, at, index)
    row("ours, known folder", size, known["look_s"] + known["cut_s"], **known)
    shutil.rmtree(room / "run")
    loop()

    one = room / "one" / "tb"
    size = write_folder(one, 1, 5 * steps_each)
    path = next(one.iterdir())
    row("copy", size, seconds(lambda: copy(path, room / "copied")))
    (room / "copied").unlink()
    alone = cut_elsewhere(one, 3 * steps_each)
    row("ours, one file", size, alone["look_s"] + alone["cut_s"], **alone)
    shutil.rmtree(room / "one")

    loop()
    row("rewriting loop", small_size, min(loops))
    return rows


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of a gigabyte, ten seconds")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the folder")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--folder", type=Path, help="where to work; three times the size is needed")
    parser.add_argument("--cut", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.cut:
        folder, step, index = asked.cut
        print(json.dumps(cut(Path(folder), int(step), Path(index) if index else None)))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as room:
        rows = measure(Path(room), 0.1 if asked.quick else asked.gigabytes, 300 if asked.quick else 1000)
    by_name = {row["what"]: row for row in rows}
    answer = {
        "mb_per_s": by_name["ours, first look"]["mb_per_s"],
        "baseline_mb_per_s": by_name["rewriting loop"]["mb_per_s"],
        "peak_rss_mb": max(float(row["peak_rss_mb"]) for row in rows if "peak_rss_mb" in row),
        "rows": rows,
    }
    if asked.json:
        print(json.dumps(answer))
        return
    print(f"{'':20} {'MB':>8} {'s':>8} {'MB/s':>8} {'times the loop':>15} {'peak RSS, MB':>13}")
    for row in rows:
        times = float(row["mb_per_s"]) / float(answer["baseline_mb_per_s"])  # type: ignore[arg-type]
        peak = f"{row['peak_rss_mb']:.0f}" if "peak_rss_mb" in row else ""
        print(f"{row['what']:20} {row['mb']:8.1f} {row['s']:8.2f} {row['mb_per_s']:8.1f} {times:15.1f} {peak:>13}")


if __name__ == "__main__":
    main()
