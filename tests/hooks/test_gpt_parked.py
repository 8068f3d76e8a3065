"""The reference trainer, parked: resumed in its processes it is, to the bit, what a job of its own would be."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from benchmarks.in_place import CHANGES, Job, changes_of, put
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings, encode_overrides
from sentinel.vocabulary.parking import ParkRequest, ReleaseRequest, ResumeRequest, encode_request, memory_tag
from sentinel.vocabulary.sample import (
    CheckpointSaved,
    LayerVariance,
    MemoryTarget,
    Parked,
    Record,
    Released,
    RunFinished,
    RunStarted,
    Sample,
)
from tests.adapters.pagers import until
from tests.hooks.trainer import command, environment, losses, records, train, under_way

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several processes start, on however few processors

BY_NAME = {change.name: change for change in CHANGES}
LONG_S = 300.0


@pytest.mark.parametrize(
    ("ranks", "zero", "precision", "names"),
    [
        pytest.param(2, 3, "fp32", ["qk-clip", "SLW", "nothing"], marks=pytest.mark.full),
        pytest.param(2, 2, "fp32", ["Adam's settings", "nothing"], marks=pytest.mark.soak),
        pytest.param(2, 3, "fp32", list(BY_NAME), marks=pytest.mark.soak),
        pytest.param(2, 0, "bf16", list(BY_NAME), marks=pytest.mark.soak),
        pytest.param(1, 0, "fp32", list(BY_NAME), marks=pytest.mark.soak),
        pytest.param(1, 1, "bf16", list(BY_NAME), marks=pytest.mark.soak),
    ],
)
def test_a_resume_in_place_is_the_job_restart_to_the_bit_and_takes_back_what_was_changed_before(
    tmp_path: Path, ranks: int, zero: int, precision: str, names: list[str]
) -> None:
    job = Job(folder=tmp_path, ranks=ranks, zero=zero, precision=precision, preset="tiny")
    job.begin()
    with job.in_place() as trainer:
        made = {name: trainer.rewind(BY_NAME[name]) for name in names}
    jobs = {name: job.restarted(BY_NAME[name]) for name in names}
    assert {name: one.digests for name, one in made.items()} == {name: one.digests for name, one in jobs.items()}
    assert len({made[name].digests for name in names}) == len(names)  # the changes do change something
    told = records(tmp_path)
    starts = [r for r in told if isinstance(r, RunStarted)][2:]
    assert [(r.in_place, r.can_park, r.parent_attempt) for r in starts[:2]] == [(True, True, 1)] * 2
    assert [r.resumed_from or 0 for r in starts] == [BY_NAME[name].to for name in names]
    ends = [r.reason for r in told if isinstance(r, RunFinished)][1:-1]
    assert ends == [f"resumed in place for incident-1-r{number}" for number in range(1, len(names) + 1)]


@pytest.mark.parametrize(
    "zero",
    [*(pytest.param(zero, marks=pytest.mark.soak) for zero in range(3)), pytest.param(3, marks=pytest.mark.full)],
)
def test_a_resume_from_memory_is_the_job_restart_from_the_checkpoint_of_that_step_to_the_bit(
    tmp_path: Path, zero: int
) -> None:
    names = ("moments reset", "another micro-batch")
    changes = [change for change in changes_of(memory=True) if change.name in names]
    job = Job(folder=tmp_path, ranks=2, zero=zero, precision="fp32", preset="tiny", memory=True)
    job.begin()
    with job.in_place() as trainer:
        made = {change.name: trainer.rewind(change).digests for change in changes}
    assert made == {change.name: job.restarted(change).digests for change in changes}
    assert len({*made.values()}) == len(changes)


def ask(folder: Path, rollback: str, attempt: int = 1, deadline_s: float = LONG_S) -> None:
    request = ParkRequest(rollback=rollback, attempt=attempt, deadline_unix_s=time.time() + deadline_s)
    put(folder / "state" / "PARK", encode_request(request))


def is_parked(folder: Path) -> bool:
    return isinstance(records(folder)[-1], Parked)


def test_a_released_trainer_trains_on_as_if_nothing_had_been_and_one_that_is_killed_while_parked_saves_nothing(
    tmp_path: Path,
) -> None:
    arguments = ("--dropout", "0.1", "--tensorboard", "tensorboard", "--save-on-stop", "--stop-exit-code", "7")
    with under_way(tmp_path, *arguments) as trainer:
        ask(tmp_path, "incident-1-r1")
        until(lambda: is_parked(tmp_path))
        events = sorted((tmp_path / "tensorboard").iterdir())
        sizes = [path.stat().st_size for path in events]
        time.sleep(1.0)
        assert is_parked(tmp_path)
        assert [path.stat().st_size for path in sorted((tmp_path / "tensorboard").iterdir())] == sizes
        release = ReleaseRequest(rollback="incident-1-r1", attempt=1)
        put(tmp_path / "state" / "RELEASE", encode_request(release))
        until(lambda: isinstance(records(tmp_path)[-1], Sample))
        ask(tmp_path, "incident-1-r2")
        until(lambda: is_parked(tmp_path))
        (tmp_path / "state" / "KILL").touch()
        assert trainer.wait(60) == 7
    told = records(tmp_path)
    kinds: list[type[Record]] = [type(r) for r in told if not isinstance(r, Sample | LayerVariance)]
    assert kinds == [RunStarted, Parked, Released, Parked, RunFinished]
    assert isinstance(told[-1], RunFinished)
    assert told[-1].reason == "kill_file"
    assert not (tmp_path / "checkpoints").exists()
    assert len(list((tmp_path / "tensorboard").iterdir())) > len(events)
    steps = [r.global_step for r in told if isinstance(r, Sample)]
    assert steps == list(range(1, steps[-1] + 1))
    undisturbed = tmp_path / "undisturbed"
    train(undisturbed, "--dropout", "0.1", "--steps", str(steps[-1]), "--lr-decay", "100")
    assert losses(undisturbed) == losses(tmp_path)


def test_a_resume_to_what_latest_does_not_name_ends_the_process_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    ask(tmp_path, "incident-1-r0", attempt=9)  # of a job that was requeued since: it begins all the same
    with under_way(tmp_path, "--save-interval", "2") as trainer:
        ask(tmp_path, "incident-1-r1")
        until(lambda: is_parked(tmp_path))
        saved = [r.tag for r in records(tmp_path) if isinstance(r, CheckpointSaved)]
        resume = ResumeRequest(rollback="incident-1-r1", attempt=1, target=saved[0], global_step=2)
        put(tmp_path / "state" / "RESUME", encode_request(resume))
        assert trainer.wait(60) == 2
    log = (tmp_path / "log").read_text()
    assert log.count("sentinel: the file PARK is ignored: it is for attempt 9, and this is attempt 1") == 1
    assert f"trainer: RESUME is to global_step2, and `latest` names {saved[-1]}" in log
    last = records(tmp_path)[-1]
    assert isinstance(last, RunFinished)
    assert last.reason == "resumed in place for incident-1-r1"


def resume_to(folder: Path, step: int, number: int) -> None:
    """From memory, with overrides.json of that rollback, which changes nothing."""
    rollback = f"incident-1-r{number}"
    at = {"incident": "incident-1", "rollback": rollback, "anchor": Anchor(global_step=step)}
    nothing = Overrides(**at, standing=TrainingSettings())  # type: ignore[arg-type]
    put(folder / "state" / "overrides.json", encode_overrides(nothing))
    resume = ResumeRequest(rollback=rollback, attempt=number, target=memory_tag(step), global_step=step)
    put(folder / "state" / "RESUME", encode_request(resume))


def test_a_resume_from_memory_trains_on_as_before_and_one_to_what_is_not_kept_ends_with_a_sentence(
    tmp_path: Path,
) -> None:
    arguments = ("--dropout", "0.1", "--memory-targets", "50", "--memory-every", "3", "--save-interval", "900")
    with under_way(tmp_path, *arguments) as trainer:
        until(lambda: sum(isinstance(r, MemoryTarget) for r in records(tmp_path)) > 2)
        ask(tmp_path, "incident-1-r1")
        until(lambda: is_parked(tmp_path))
        before = {r.global_step: r.loss for r in records(tmp_path) if isinstance(r, Sample)}
        resume_to(tmp_path, 6, 1)
        until(lambda: any(r.attempt == 2 and r.global_step > 8 for r in records(tmp_path) if isinstance(r, Sample)))
        ask(tmp_path, "incident-1-r2", attempt=2)
        until(lambda: is_parked(tmp_path))
        resume_to(tmp_path, 1000, 2)
        assert trainer.wait(60) == 2
    again = {r.global_step: r.loss for r in records(tmp_path) if isinstance(r, Sample) and r.attempt == 2}
    both = sorted({*again} & {*before})
    assert both[0] == 7
    assert {step: again[step] for step in both} == {step: before[step] for step in both}
    held = [r for r in records(tmp_path) if isinstance(r, MemoryTarget)]
    of_second = [r for r in held if r.attempt == 2]
    assert (of_second[0].global_step, of_second[0].held, of_second[0].digest) == (6, (3, 6), None)
    began = [r for r in records(tmp_path) if isinstance(r, RunStarted)]
    assert (began[1].resumed_from, began[1].parent_attempt, began[1].in_place) == (6, 1, True)
    assert "trainer: memory:1000 can't be loaded: it is not kept: 3, 6, " in (tmp_path / "log").read_text()
    saved = [(r.attempt, r.global_step) for r in records(tmp_path) if isinstance(r, CheckpointSaved)]
    assert saved == [(2, 7)]  # a crash would begin there, and not before its target
    kinds = [type(r) for r in records(tmp_path) if isinstance(r, Parked | MemoryTarget | RunFinished)]
    assert kinds[kinds.index(Parked) + 1] is RunFinished  # nothing comes after the record that it is parked


def test_where_a_full_disk_lets_no_file_be_closed_the_training_is_not_parked_and_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with under_way(tmp_path, "--tensorboard", "tensorboard") as trainer:
        process, unlimited = psutil.Process(trainer.pid), psutil.RLIM_INFINITY
        process.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size + 4000, unlimited))  # room for the log's words alone
        until(lambda: "sentinel could not hand the sample on (OSError: [Errno 27] File too large)" in log.read_text())
        ask(tmp_path, "incident-1-r1")
        why = "rank 0 could not close its files (OSError: [Errno 27] File too large)"
        until(lambda: f"sentinel: the training is not parked: {why}; it goes on" in log.read_text())
        process.rlimit(psutil.RLIMIT_FSIZE, (unlimited, unlimited))
        told = len(records(tmp_path))
        until(lambda: len(records(tmp_path)) > told + 3)
    assert not any(isinstance(r, Parked) for r in records(tmp_path))


@contextmanager
def two_ranks(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Started without a launcher that would end the one with the other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    arguments = command(folder, "--steps", "1000000", "--lr-decay", "100", "--zero", "1")
    ranks = []
    for rank in ("0", "1"):
        of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with (folder / f"log-{rank}").open("wb") as log:
            ranks.append(subprocess.Popen(arguments, cwd=folder, env=environment() | of_rank, stdout=log, stderr=log))
    try:
        until(lambda: (folder / "state" / "attempts").exists() and any(isinstance(r, Sample) for r in records(folder)))
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait(60)


@pytest.mark.parametrize("dies", [pytest.param(0, marks=pytest.mark.full), 1])
def test_where_a_rank_dies_while_the_others_are_parked_they_end_by_the_deadline_with_a_sentence(
    tmp_path: Path, dies: int
) -> None:
    with two_ranks(tmp_path) as ranks:
        ask(tmp_path, "incident-1-r1", deadline_s=20.0)
        until(lambda: is_parked(tmp_path))
        ranks[dies].kill()
        assert ranks[1 - dies].wait(90) == os.EX_TEMPFAIL
    log = (tmp_path / f"log-{1 - dies}").read_text()
    last = records(tmp_path)[-1]
    if dies == 1:  # no one is asked for until then
        assert "trainer: parked too long: neither RESUME nor RELEASE came before the deadline of PARK" in log
        assert isinstance(last, RunFinished)
        assert last.reason == "parked too long"
    else:
        assert "trainer: the training was parked, and " in log
        assert isinstance(last, Parked)
