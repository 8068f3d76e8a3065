"""A loop of a DeepSpeed engine that was attached with `reload`: examples/deepspeed_in_place.py."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.in_place import put
from sentinel.vocabulary.parking import ParkRequest, ReleaseRequest, ResumeRequest, encode_request
from sentinel.vocabulary.sample import MemoryTarget, Parked, Released, RunFinished, RunStarted, Sample
from tests.adapters.pagers import until
from tests.hooks.trainer import records
from tests.support.forked_programs import Forked

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several processes start, on however few processors

ROOT = Path(__file__).parents[2]


@contextmanager
def training(folder: Path, *more: str, ranks: int) -> Iterator[Forked]:
    folder.mkdir(exist_ok=True)
    words, log = ("--output", str(folder), *more), folder / "log"
    process = Forked(str(ROOT / "examples" / "deepspeed_in_place.py"), *words, ranks=ranks, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def lines(folder: Path, rank: int) -> list[str]:
    return (folder / f"losses-{rank}.txt").read_text().splitlines()


def park(folder: Path, rollback: str, attempt: int, deadline_s: float = 300.0) -> None:
    request = ParkRequest(rollback=rollback, attempt=attempt, deadline_unix_s=time.time() + deadline_s)
    put(folder / "state" / "PARK", encode_request(request))
    until(lambda: isinstance(records(folder)[-1], Parked))


@pytest.mark.parametrize(("ranks", "zero"), [(1, 1), pytest.param(2, 2, marks=pytest.mark.full)])
def test_a_loop_goes_on_in_place_as_a_new_process_would_and_ends_by_the_deadline(
    tmp_path: Path, ranks: int, zero: int
) -> None:
    folder, of_zero = tmp_path / "out", ("--zero", str(zero))
    with training(folder, "--steps", "1000000", *of_zero, ranks=ranks) as process:
        until((folder / "checkpoints" / "global_step20").exists, within_s=120)
        until(lambda: any(isinstance(r, Sample) and r.global_step > 22 for r in records(folder)))
        park(folder, "incident-1-r1", attempt=1)
        put(folder / "state" / "RELEASE", encode_request(ReleaseRequest(rollback="incident-1-r1", attempt=1)))
        until(lambda: isinstance(records(folder)[-1], Sample))
        park(folder, "incident-1-r2", attempt=1)
        before = [len(lines(folder, rank)) for rank in range(ranks)]
        resume = ResumeRequest(rollback="incident-1-r2", attempt=1, target="global_step10", global_step=10)
        put(folder / "state" / "RESUME", encode_request(resume))
        until(lambda: any(r.attempt == 2 and isinstance(r, Sample) and r.global_step > 35 for r in records(folder)))
        park(folder, "incident-1-r3", attempt=2, deadline_s=3.0)
        assert process.wait(60) == os.EX_TEMPFAIL
    assert "sentinel: parked too long; the process ends with exit code 75" in (folder / "log").read_text()
    told = records(folder)
    began = [r for r in told if isinstance(r, RunStarted)][-1]
    assert (began.in_place, began.can_park, began.parent_attempt, began.resumed_from) == (True, True, 1, 10)
    assert (began.rollback, began.seed) == ("incident-1-r2", 0)
    kinds = [type(r) for r in told if isinstance(r, Parked | Released | RunFinished)]
    assert kinds == [Parked, Released, Parked, RunFinished, Parked, RunFinished]
    again = tmp_path / "again"
    again.mkdir()
    (again / "checkpoints").mkdir()
    (again / "checkpoints" / "global_step10").symlink_to(folder / "checkpoints" / "global_step10")
    (again / "checkpoints" / "latest").write_text("global_step10")
    with training(again, "--steps", "35", *of_zero, ranks=ranks) as process:
        assert process.wait(200) == 0
    for rank in range(ranks):
        assert lines(folder, rank)[before[rank] :][:25] == lines(again, rank)


def test_a_loop_goes_on_from_a_state_in_memory_with_what_it_gave_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with training(folder, "--steps", "1000000", "--memory-targets", "200", ranks=1):
        until(lambda: any(isinstance(r, MemoryTarget) and r.global_step == 15 for r in records(folder)), within_s=200)
        park(folder, "incident-1-r1", attempt=1)
        before = lines(folder, 0)
        resume = ResumeRequest(rollback="incident-1-r1", attempt=1, target="memory:5", global_step=5)
        put(folder / "state" / "RESUME", encode_request(resume))
        until(lambda: any(r.attempt == 2 and isinstance(r, Sample) and r.global_step > 14 for r in records(folder)))
        park(folder, "incident-1-r2", attempt=2)  # its log is closed then
    assert lines(folder, 0)[len(before) :][:10] == before[5:15]
    told = [r for r in records(folder) if isinstance(r, RunStarted)][-1]
    assert (told.in_place, told.resumed_from) == (True, 5)
    assert (folder / "checkpoints" / "global_step6").is_dir()  # a crash would begin there, and not before its target
    kept = [r.held for r in records(folder) if isinstance(r, MemoryTarget) and r.attempt == 2]
    assert kept[:2] == [(5,), (5, 10)]
