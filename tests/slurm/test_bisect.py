"""A bisect under a real Slurm: its probes are jobs, and one of them leaves the attempt's nodes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bisect_causes import digests, put_on_record
from sentinel.plan import bisect
from tests.adapters.checkpoint_files import deepspeed
from tests.e2e.test_bisect import NAN_FROM, TRAINER, configured
from tests.slurm.cluster import Cluster, until
from tests.slurm.test_recovery import job_script
from tests.tune.runs import SENTINEL, environment

pytestmark = pytest.mark.full


def test_a_node_that_is_always_wrong_is_found_by_the_job_that_excludes_it(cluster: Cluster, tmp_path: Path) -> None:
    bad = cluster.names[0]
    ill = f'ill or (step >= {NAN_FROM} and os.environ["SLURMD_NODENAME"] == {bad!r}) or -1 =='
    text = TRAINER.replace("ill or position ==", ill).replace("sys.argv[1:3]", "sys.argv[2:5:2]")
    text = text.replace('"skip_samples", "seed", "reset_moments"', "")
    text = text.replace("world_size=1", 'world_size=1, job_id=os.environ["SLURM_JOB_ID"], host="elsewhere"')
    (tmp_path / "trainer.py").write_text(text)
    for step in (10, 20, 30):
        deepspeed(tmp_path / "checkpoints", step)
    places = ["--state", str(tmp_path / "state"), "--saves", str(tmp_path / "checkpoints")]
    script = job_script(tmp_path, [sys.executable, str(tmp_path / "trainer.py"), *places])
    run = cluster.slurm("sbatch", "--parsable", f"--nodelist={bad}", str(script), cwd=tmp_path)
    until(lambda: f"{run} COMPLETED" in cluster.jobs("%i %T", "--states=all"))
    (tmp_path / "checkpoints" / "latest").write_text("global_step30")
    assert put_on_record(tmp_path) is None
    launcher = {"kind": "slurm", "script": str(script), "query_interval_s": 0.3, "slurm_timeout_s": 10.0}
    path = configured(tmp_path, [], launcher=launcher)
    before = digests(tmp_path)
    command = [*SENTINEL, "bisect", "--run", str(path), "--json"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout)
    assert [(p["name"], p["outcome"]) for p in told["probes"]] == [("control", "diverged"), ("other-node", "calm")]
    assert told["ranked"][0]["cause"] == bisect.BROKEN_NODE
    assert digests(tmp_path) == before
    assert cluster.jobs("%N", "--states=all", "--name=probe-ill-other-node") == [cluster.names[1]]
