"""The heartbeats of a training that lives, hangs, is killed or ends, and what sentinel sees of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.act.file_activity import FileTimes
from sentinel.adapters.heartbeats import Heartbeats as Seen
from sentinel.vocabulary.heartbeat import FOLDER, Heartbeat, decode_heartbeat, encode_heartbeat, interval_s
from tests.adapters.pagers import until
from trainer_hooks.export.heartbeats import Heartbeats, _nodes

TRAINER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from trainer_hooks.export.heartbeats import Heartbeats

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
hook = type("Hook", (), {})()
hook.rank, hook.attempt = rank, 3 if rank == 0 else 0
beats = Heartbeats(folder / "state", hook, 2)
beats.beside(folder / "checkpoints")
while not (folder / "end").exists():
    time.sleep(0.02)
"""


@contextmanager
def trainer(folder: Path, rank: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "checkpoints").mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.endswith(("RANK", "WORLD_SIZE"))}
    with subprocess.Popen([sys.executable, "-c", TRAINER, str(folder), str(rank)], env=environment) as process:
        try:
            until(lambda: any(f"-{process.pid}-" in p.name for p in paths(folder)))
            yield process
        finally:
            process.kill()


def paths(folder: Path) -> list[Path]:
    return [p for p in (folder / "state" / FOLDER).glob("*") if p.name[0] != "."]


def seen(folder: Path) -> Seen:
    state, checkpoints = folder / "state", folder / "checkpoints"
    times = FileTimes(state, checkpoints)
    return Seen((state / FOLDER, checkpoints / ".sentinel-heartbeats"), times.age_s)


def aged(folder: Path, seconds: float) -> None:
    """As if nothing was renewed since."""
    for path in folder.rglob("*.json"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_a_training_that_lives_is_seen_and_one_that_ends_or_is_killed_is_not(tmp_path: Path) -> None:
    looking = seen(tmp_path)
    with trainer(tmp_path) as process:
        until(lambda: len(looking.living(fresh=True)) == 2)  # beside the checkpoints as well
        first = looking.living(fresh=True)[0]
        assert f"rank 0 of attempt 3 (process {process.pid} on " in first.what
        assert first.locked
        (tmp_path / "end").touch()
        assert process.wait(20) == 0
        assert decode_heartbeat(paths(tmp_path)[0].read_text()).ended
        assert looking.living(fresh=True) == ()
        assert seen(tmp_path).living(fresh=True) == ()
    (tmp_path / "end").unlink()
    with trainer(tmp_path, rank=1) as process:
        (beat,) = looking.living(fresh=True)
        assert "rank 1 (process" in beat.what
        process.kill()
        process.wait()
        assert looking.living(fresh=True) == ()


def test_a_stopped_training_that_renews_nothing_holds_its_lock(tmp_path: Path) -> None:
    with trainer(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        aged(tmp_path, 1e6)
        until(lambda: len(seen(tmp_path).living(fresh=True)) == 2)
        assert "holds the lock of its heartbeat" in seen(tmp_path).living(fresh=True)[0].sentence
        process.kill()
        process.wait()
        assert seen(tmp_path).living(fresh=True) == ()


@pytest.mark.parametrize(
    ("age_s", "changes", "lives"),
    [
        (29.0, {}, True),
        (31.0, {}, False),
        (-86_400.0, {}, True),  # its time lies in the future
        (0.0, {"ended": True}, False),
        (500.0, {"interval_s": 205.0}, True),
        (4e3, {"interval_s": 1e9}, True),  # an interval that somebody has set
        (2e4, {"interval_s": 1e9}, False),
        (0.0, {"interval_s": "nonsense"}, True),  # what can't be read may be anybody's
        (181.0, {"interval_s": "nonsense"}, False),
    ],
)
def test_a_heartbeat_of_another_machine_counts_for_three_of_its_intervals(
    tmp_path: Path, age_s: float, changes: dict[str, Any], lives: bool
) -> None:
    told = Heartbeat(rank=8, host="another", pid=1, interval_s=10.0, state_dir="/state", boot_id="another")
    path = tmp_path / "state" / FOLDER / told.file_name
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(json.loads(encode_heartbeat(told)) | changes))
    os.utime(path, (time.time() - age_s,) * 2)
    looking = seen(tmp_path)
    assert len(looking.living(fresh=True)) == lives
    if not changes.get("ended"):  # a node that was frozen comes back
        os.utime(path)
        assert len(looking.living(fresh=True)) == 1


def test_a_pipe_in_the_place_of_a_heartbeat_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "state" / FOLDER).mkdir(parents=True)
    os.mkfifo(tmp_path / "state" / FOLDER / "00000-a-1-1.json")
    (tmp_path / "state" / FOLDER / "folder.json").mkdir()
    assert seen(tmp_path).living(fresh=True) == ()


def test_a_second_attach_in_the_same_process_goes_on_with_its_file(tmp_path: Path) -> None:
    class Attached:
        rank, attempt = 0, 1

    first, second = Attached(), Attached()
    Heartbeats(tmp_path / "state", first, 1)  # type: ignore[arg-type]
    until(lambda: paths(tmp_path) != [])
    second.attempt = 2
    Heartbeats(tmp_path / "state", second, 1)  # type: ignore[arg-type]
    (path,) = paths(tmp_path)
    until(lambda: decode_heartbeat(path.read_text()).attempt == 2, within_s=20)
    assert len(paths(tmp_path)) == 1


@pytest.mark.parametrize(
    ("environment", "rank", "world", "nodes", "is_one"),
    [
        ({}, 0, 1, 1, True),
        ({}, 3, 4, 4, True),  # nothing numbers the ranks of a node
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}, 8, 1024, 128, True),
        ({"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}, 13, 1024, 128, False),
        ({"SLURM_LOCALID": "1"}, 1, 16, 16, False),
    ],
)
def test_one_process_of_a_node_has_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], rank: int, world: int, nodes: int, is_one: bool
) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _nodes(rank, world) == (nodes, is_one)


def test_a_run_renews_five_files_a_second_at_most() -> None:
    assert interval_s(1) == 10.0
    assert all((nodes + 1) / interval_s(nodes) <= 5.0 for nodes in (1, 8, 64, 1024, 16_384))


def test_a_state_folder_that_can_not_be_written_costs_the_training_nothing(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")

    class Attached:
        rank, attempt = 0, 0

    began = time.monotonic()
    Heartbeats(tmp_path / "state", Attached(), 1).close()  # type: ignore[arg-type]
    assert time.monotonic() - began < 1.0
