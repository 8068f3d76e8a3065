"""Two runs of one account whose jobs have one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.adapters.slurm import SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.vocabulary.errors import JobUnclear
from sentinel.vocabulary.sample import RunStarted
from tests.slurm.cluster import Cluster, until

pytestmark = pytest.mark.full
ROLLBACK = "incident-1-r1"


class Run:
    def __init__(self, cluster: Cluster, name: str, state: Path, directory: Path) -> None:
        for folder in (state, directory):
            folder.mkdir(exist_ok=True)
        self.script = directory / f"{name}.sh"
        self.script.write_text(f"#!/bin/bash\n# {name}\nsleep 300\n")
        options = ("--job-name=train", "--array=1-3%1", str(self.script))
        self.job = cluster.slurm("sbatch", "--parsable", *options, cwd=directory)
        self.started = [RunStarted(attempt=1, time_unix_s=0.0, job_id=f"{self.job}_1")]
        settings = SlurmSettings(
            run=name,
            state_dir=state,
            working_directory=directory,
            job_name="train",
            query_interval_s=0.0,
            stop_grace_s=30.0,
        )
        self.launcher = SlurmLauncher(SlurmClient(), settings)
        until(lambda: f"{self.job}_1 RUNNING" in cluster.jobs())

    def roll_back(self) -> None:
        self.launcher.prepare(ROLLBACK, self.started, None)
        self.launcher.stop(self.started, ROLLBACK)
        self.launcher.start("incident-1", ROLLBACK, self.started, follow_up=False)


def test_a_rollback_touches_no_job_of_the_same_name_in_another_work_directory(cluster: Cluster, tmp_path: Path) -> None:
    a, b = (Run(cluster, name, tmp_path / f"{name}-state", tmp_path / name) for name in "ab")
    assert {w.id.partition("_")[0] for w in a.launcher.look(a.started).writers} == {a.job}
    a.roll_back()
    shown = cluster.jobs("%F|%T|%k|%Z", "--states=all")
    of_b = [line for line in shown if line.startswith(f"{b.job}|")]
    assert {line.split("|")[1] for line in of_b} == {"RUNNING", "PENDING"}
    again = {line.split("|")[0] for line in shown if f"sentinel:a:{ROLLBACK}:0" in line}
    assert len(again) == 1
    assert {line.split("|")[3] for line in shown if f"sentinel:a:{ROLLBACK}:0" in line} == {str(tmp_path / "a")}
    assert {w.id.partition("_")[0] for w in a.launcher.look(a.started).writers} == again
    assert {w.id.partition("_")[0] for w in b.launcher.look(b.started).writers} == {b.job}
    assert not (tmp_path / "a-state" / "jobs" / f"{b.job}.sh").exists()


def test_two_runs_of_one_name_in_one_work_directory_are_unknown_and_nothing_is_touched(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b = (Run(cluster, name, tmp_path / f"{name}-state", tmp_path / "both") for name in "ab")
    before = cluster.jobs("%i %T %k")
    seen = a.launcher.look(a.started)
    assert not seen.known
    assert f"job {b.job} has the name and the work directory of job {a.job}, and another script" in seen.why_unknown
    assert "[launcher] job_name of its own" in seen.why_unknown
    with pytest.raises(JobUnclear):
        a.roll_back()
    assert cluster.jobs("%i %T %k") == before
    assert not (tmp_path / "a-state" / "jobs" / f"{b.job}.sh").exists()
