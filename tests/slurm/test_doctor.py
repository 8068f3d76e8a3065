"""What the doctor sees of a run's jobs under a real Slurm."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from typer.testing import CliRunner

from sentinel.adapters.slurm.jobs import Mark, marked
from sentinel.cli.commands import app
from tests.slurm.cluster import Cluster


def test_the_doctor_tries_a_job_that_sentinel_has_submitted_and_that_has_not_begun(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Between a restart and its first step `doctor` said that no job of the run is in the queue; before the first
    attempt, which makes the state folder, it failed to write its copy of the script there."""
    state = tmp_path / "state"
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[launcher]\nkind = "slurm"\n'
    )
    run = f"a~{hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:8]}"
    comment = marked("", Mark(run=run, label="incident-1-r1", number=0))
    held = ("--hold", f"--comment={comment}", f"--chdir={tmp_path}", "--wrap=sleep 60")
    job = cluster.slurm("sbatch", "--parsable", *held, cwd=tmp_path)
    said = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml")]).stdout
    assert f"Slurm returns the script of job {job}" in said, said
    assert "sbatch --test-only accepts the job" in said, said
    cluster.slurm("scancel", job)
    assert (
        "[launcher] job_name finds it" in CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml")]).stdout
    )


def test_the_doctor_names_a_job_of_the_runs_name_in_another_work_directory(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
        '[launcher]\nkind = "slurm"\njob_name = "train"\n'
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    held = ("--hold", "--job-name=train", f"--chdir={elsewhere}", "--wrap=sleep 60")
    job = cluster.slurm("sbatch", "--parsable", *held, cwd=tmp_path)
    said = CliRunner().invoke(app, ["doctor", "--run", str(tmp_path / "a.toml")]).stdout
    assert f"job {job} has this run's job name, and works in {elsewhere}" in " ".join(said.split()), said
    assert "submission was not tried" in " ".join(said.split()), said
    cluster.slurm("scancel", job)
