"""While a run is well its newest checkpoint is read in the background; a rollback then reads what has changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.adapters.checkpoint_files import deepspeed
from tests.support.fleets import Folder

SENTINEL = [sys.executable, "-m", "sentinel"]


def set_up(tmp_path: Path, *watch: str) -> tuple[Folder, Path]:
    """A run with 300 healthy steps and checkpoints of steps 200 and 300."""
    folder = Folder(tmp_path)
    folder.run("tr8", *watch)  # into its last table, [watch]
    folder.trained("tr8")
    for step in (200, 300):
        deepspeed(tmp_path / "c-tr8", step)
    return folder, tmp_path / "runs" / "tr8.toml"


def aged(file: Path, age_s: float) -> None:
    os.utime(file, (time.time() - age_s, time.time() - age_s))


def rollback(path: Path, tag: str) -> dict[str, object]:
    """What a dry run says of the target."""
    line = [*SENTINEL, "rollback", "--run", str(path), "--to", tag, "--dry-run", "--json", "--no-start"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=path.parent)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    target = json.loads(ran.stdout)["target"]
    assert isinstance(target, dict)
    return target


@pytest.mark.full
def test_a_rollback_reads_nothing_of_what_was_read_ahead_and_says_when_it_was(tmp_path: Path) -> None:
    folder, path = set_up(tmp_path)
    for file in tmp_path.glob("c-tr8/*/*"):
        aged(file, 7200.0)  # or a rollback waits for what may still write
    with folder.watch("--run", str(path), "--observe") as watch:
        watch.says("global_step300 was read ahead of a rollback: 3 files of 0.0 GB, read at")
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    aged(folder.journal("tr8"), 7200.0)
    path.write_text(path.read_text().replace('kind = "elsewhere"', 'kind = "local"\ncommand = ["true"]'))
    known = rollback(path, "global_step300")["verification"]
    assert isinstance(known, dict)
    assert (known["files"], known["files_read"], known["bytes_read"]) == (3, 0, 0)
    assert known["oldest_unix_s"] < time.time()
    older = rollback(path, "global_step200")["verification"]
    assert isinstance(older, dict)
    assert older["files_read"] == 3
    shard = tmp_path / "c-tr8" / "global_step300" / "mp_rank_00_model_states.pt"
    aged(shard, 7100.0)
    changed = rollback(path, "global_step300")["verification"]
    assert isinstance(changed, dict)
    assert (changed["files_read"], changed["bytes_read"]) == (1, shard.stat().st_size)


@pytest.mark.full
def test_a_run_that_is_not_well_is_not_read_on_and_no_turn_waits(tmp_path: Path) -> None:
    folder, path = set_up(tmp_path, "read_ahead_mb_per_s = 0.001")  # some 46 KB: three quarters of a minute
    with folder.watch("--run", str(path), "--observe") as watch:
        watch.says("is healthy at step 300")
        time.sleep(7)  # until it has begun
        assert not (folder.state("tr8") / "verified.json").exists()
        with folder.writing("tr8", 800, ill_at=301):
            watch.says("global_step300 is not read ahead any more")
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    assert "was read ahead" not in watch.said()


@pytest.mark.full
def test_a_watch_that_ends_waits_for_no_reading(tmp_path: Path) -> None:
    folder, path = set_up(tmp_path, "read_ahead_mb_per_s = 0.001")
    with folder.watch("--run", str(path), "--observe") as watch:
        watch.says("is healthy at step 300")
        time.sleep(7)
        began_s = time.monotonic()
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
        assert time.monotonic() - began_s < 20
    assert "was read ahead" not in watch.said()


@pytest.mark.full
def test_zero_reads_nothing_ahead(tmp_path: Path) -> None:
    folder, path = set_up(tmp_path, "read_ahead_mb_per_s = 0")
    with folder.watch("--run", str(path), "--observe") as watch:
        watch.says("is healthy at step 300")
        time.sleep(7)
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0
    assert "read ahead" not in watch.said()
    assert not (folder.state("tr8") / "verified.json").exists()
