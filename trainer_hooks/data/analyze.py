"""From data to an index: count, measure, join, sort; each part is done once, however often the analysis is started.

Ranks (over nodes) and workers (over processes) share the shards by a common folder; the first rank waits for all shards
and makes the rest. Each file is renamed to its place when it is complete, so a kill costs only what was under way.
When a worker's parent dies the worker ends; when a worker dies the parent raises DataError.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sentinel.vocabulary.errors import DataError, TemporaryError
from trainer_hooks.data.index import FILES, MANIFEST, Index, Manifest
from trainer_hooks.data.metrics import named, needs_counts
from trainer_hooks.data.shards import Job, Rows, Stage, read_counts, shard_maker, shard_path, summed, written
from trainer_hooks.data.sorting import ArrayFile, sort_values

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who shares the work."""

    rank: int = 0
    world: int = 1
    patience_s: float = 1800.0  # How long to wait while no other rank finishes anything


def analyze(job: Job, *, workers: int = 1, ranks: Ranks | None = None, out: TextIO | None = None) -> Path:
    """Makes OUTPUT/METRIC, the index; returns that folder. Nothing is done where it is already there. DataError when
    the folder holds an index of other data; TemporaryError when another rank finishes nothing any more."""
    ranks = ranks or Ranks()
    rows = job.rows()
    folder = job.output / job.folder_name
    work = job.work(rows)
    if not (folder / MANIFEST).exists():
        work.mkdir(parents=True, exist_ok=True)
        if needs_counts(job.metric):
            _map(job, rows, work, "counts", workers, ranks, out)

            def add_up() -> None:
                paths = (shard_path(work, "counts", number) for number in range(len(job.shards(rows))))
                total = summed(np.load(path, allow_pickle=False) for path in paths)
                written(work / "counts.npy", lambda file: np.save(file, total, allow_pickle=False))

            _reduced(ranks, work / "counts.npy", add_up)
        _map(job, rows, work, "values", workers, ranks, out)
        _reduced(ranks, folder / MANIFEST, lambda: _put_together(job, rows, work, folder))
    Index.load(folder, rows.fingerprint)
    if ranks.rank == 0:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _map(job: Job, rows: Rows, work: Path, stage: Stage, workers: int, ranks: Ranks, out: TextIO | None) -> None:
    """This rank's shards of the stage that are not yet there."""
    shards = job.shards(rows)
    ours = range(ranks.rank, len(shards), ranks.world)
    missing = [number for number in ours if not shard_path(work, stage, number).exists()]
    total = sum(len(shards[number]) for number in ours)
    done = total - sum(len(shards[number]) for number in missing)
    name = f"{job.metric}, {stage}" + (f", rank {ranks.rank}" if ranks.world > 1 else "")
    bar = ProgressBar(out, name, total, done)
    for number in map_shards(job, rows, work, stage, missing, workers):
        done += len(shards[number])
        bar.update(done)
    if ranks.rank == 0:
        _await([shard_path(work, stage, number) for number in range(len(shards))], ranks)


def _reduced(ranks: Ranks, path: Path, make: Callable[[], None]) -> None:
    """What the first rank makes of everyone's shards, at that path."""
    if path.exists():
        return
    if ranks.rank == 0:
        make()
    else:
        _await([path], ranks)


def _await(paths: Sequence[Path], ranks: Ranks) -> None:
    since, missing = time.monotonic(), [path for path in paths if not path.exists()]
    while missing:
        time.sleep(_POLL_S)
        left = [path for path in missing if not path.exists()]
        if len(left) < len(missing):
            since, missing = time.monotonic(), left
        elif time.monotonic() - since > ranks.patience_s:
            raise TemporaryError(
                f"no other rank has finished anything for {ranks.patience_s:g} s; {len(left)} files are missing, the "
                f"first is {left[0]}: start again, what is done is kept"
            )


def _put_together(job: Job, rows: Rows, work: Path, folder: Path) -> None:
    """Values end to end, sorted, and the manifest; all in a folder beside, which then takes its name."""
    beside = work / "index"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    counts = read_counts(work)
    if counts is not None:
        shutil.copyfile(work / "counts.npy", beside / "counts.npy")
    smallest, largest, dtype = _end_to_end(job, rows, work, beside / "values.npy")
    distinct = sort_values(beside / "values.npy", beside)
    for scratch in beside.glob("runs.*"):
        scratch.unlink()
    metric = named(job.metric, width=rows.width, pad=rows.pad, counts=counts)
    manifest = Manifest(
        metric=job.metric,
        parameters=metric.parameters,
        corpus=rows.fingerprint,
        samples=len(rows),
        distinct=distinct,
        dtype=dtype.name,
        smallest=smallest,
        largest=largest,
    )
    (beside / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    for name in (*(f"{file}.npy" for file in FILES), MANIFEST):
        with (beside / name).open("rb") as file:
            os.fsync(file.fileno())
    try:
        beside.rename(folder)
    except OSError as error:
        raise DataError(f"{folder}: is there already, and is no whole index: move it away") from error


def _end_to_end(job: Job, rows: Rows, work: Path, path: Path) -> tuple[float, float, np.dtype[Any]]:
    smallest, largest, values = np.inf, -np.inf, None
    for number in range(len(job.shards(rows))):
        part = np.load(shard_path(work, "values", number), allow_pickle=False)
        values = values or ArrayFile(path, part.dtype)
        values.append(part)
        smallest, largest, dtype = min(smallest, float(part.min())), max(largest, float(part.max())), part.dtype
    if values is None:
        raise DataError("there is no sample")
    values.close()
    return smallest, largest, dtype


def map_shards(job: Job, rows: Rows, work: Path, stage: Stage, numbers: Sequence[int], workers: int) -> Iterator[int]:
    """Does these shards, in this process (one worker) or in several; gives the number of each as it is done."""
    workers = min(workers, len(numbers))
    if workers <= 1:
        yield from map(shard_maker(job, rows, work, stage), numbers)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_end_with_parent)
    try:
        for done in as_completed([pool.submit(_do_shard, job, work, stage, number) for number in numbers]):
            yield done.result()
    except BrokenProcessPool as error:
        raise DataError("a worker has died; start again, the shards that are done are kept") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """In a worker, which would wait for more work without end once its parent has died."""

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do_shard(job: Job, work: Path, stage: Stage, number: int) -> int:
    return _maker(job, work, stage)(number)


@lru_cache(maxsize=1)
def _maker(job: Job, work: Path, stage: Stage) -> Callable[[int], int]:
    """Of a worker, which opens the data once."""
    return shard_maker(job, job.rows(), work, stage)


_LINE_EVERY_S = 10.0
_BAR = 30


class ProgressBar:
    """Of one stage. The rate counts what this start has done, not what an earlier one had."""

    def __init__(self, out: TextIO | None, stage: str, total: int, done: int) -> None:
        self._out, self._stage, self._total, self._begun_with = out, stage, total, done
        self._began = time.monotonic()
        self._reported_at = -_LINE_EVERY_S
        self._terminal = out is not None and out.isatty()
        self.update(done)

    def update(self, done: int) -> None:
        now = time.monotonic()
        if self._out is None or not (self._terminal or done == self._total or now - self._reported_at >= _LINE_EVERY_S):
            return
        self._reported_at = now
        rate = (done - self._begun_with) / max(now - self._began, 1e-9)
        share = done / max(self._total, 1)
        line = f"{self._stage}: {done:,} of {self._total:,} samples ({share:.0%})"
        if rate:
            left = timedelta(seconds=round((self._total - done) / rate))
            line += f", {rate:,.0f} a second, {left} left"
        if self._terminal:
            bar = "#" * round(share * _BAR)
            self._out.write(f"\r[{bar:<{_BAR}}] {line}\033[K" + ("\n" if done == self._total else ""))
        else:
            self._out.write(line + "\n")
        self._out.flush()
