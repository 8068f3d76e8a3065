"""The search under a real Slurm: each probe a job of its own, in a copy of the run's own script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.support.slurm_runs import job_script
from tests.tune.runs import SENTINEL, configuration, environment, trainer

pytestmark = pytest.mark.full


def test_probes_are_jobs_and_the_run_that_waits_in_the_queue_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    theirs = ("--save", str(tmp_path / "checkpoints"), "--save-interval", "10")
    script = job_script(tmp_path, trainer(tmp_path, *theirs))
    before = script.read_bytes()
    own = cluster.slurm("sbatch", "--parsable", "--hold", "--job-name=small", str(script), cwd=tmp_path)
    launcher = {"kind": "slurm", "script": str(script), "job_name": "small", "query_interval_s": 0.4}
    path = configuration(tmp_path, [], {"durations": [40, 640]}, slurm_timeout_s=10.0, stop_grace_s=40.0, **launcher)
    command = [*SENTINEL, "tune", "slw", "--run", str(path), "--json"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout)
    verdicts = {probe["total_steps"]: probe["verdict"] for probe in told["probes"]}
    assert verdicts == {40: "calm", 640: "fluctuates"}
    assert told["chosen"]["total_steps"] == 40
    assert script.read_bytes() == before
    assert not (tmp_path / "checkpoints").exists()
    jobs = dict(line.split(" ", 1) for line in cluster.jobs("%i %j %T", "--states=all"))
    assert jobs[own] == "small PENDING"
    assert sorted(name.split()[0] for name in jobs.values() if name.startswith("probe-small-")) == [
        "probe-small-start8-T40",
        "probe-small-start8-T640",
    ]
    states = {state.split()[1] for state in jobs.values() if state.startswith("probe-small-")}
    assert states <= {"COMPLETED", "CANCELLED"}
