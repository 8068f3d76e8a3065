"""The watch as a job of Slurm's own: one at a time, back in the queue when its time is up, and never its own target."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import START_SOON, Cluster, until

SENTINEL = [sys.executable, "-m", "sentinel"]


def configure(folder: Path) -> Path:
    path = folder / "tr8.toml"
    path.write_text(
        '[run]\nname = "tr8"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        '[launcher]\nkind = "slurm"\njob_name = "sentinel-tr8"\n[watch]\npoll_interval_s = 0.2\n'
    )
    return path


def submit(folder: Path, *more: str) -> str:
    line = [*SENTINEL, "sbatch-watch", "--run", str(folder / "tr8.toml"), *more]
    said = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True, cwd=folder).stdout
    return said.split()[2].rstrip(":")


def log(folder: Path) -> str:
    path = folder / "state" / "watch.log"
    return path.read_text() if path.exists() else ""


def test_one_watch_runs_and_the_next_waits_for_it(cluster: Cluster, tmp_path: Path) -> None:
    configure(tmp_path)
    first, second = submit(tmp_path), submit(tmp_path)
    until(lambda: "watching tr8 in mode observe" in log(tmp_path))
    until(lambda: cluster.jobs("%A %T %r") == [f"{first} RUNNING None", f"{second} PENDING Dependency"])


@pytest.mark.full
def test_a_watch_whose_time_is_up_goes_back_in_the_queue_and_on(cluster: Cluster, tmp_path: Path) -> None:
    configure(tmp_path)
    job = submit(tmp_path, "--sbatch=--time=60")
    until(lambda: "watching tr8" in log(tmp_path))
    cluster.slurm("scancel", "--signal=USR1", "--batch", job)
    until(lambda: f"{job} PENDING" in cluster.jobs("%A %T") or log(tmp_path).count("watching tr8") == 2)
    cluster.slurm("scontrol", "update", f"JobId={job}", START_SOON, expect=None)
    until(lambda: log(tmp_path).count("watching tr8") == 2)
    assert "another sentinel" not in log(tmp_path)
