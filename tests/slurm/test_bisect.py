"""A bisect under a real Slurm: its probes are jobs, and one of them leaves the attempt's nodes out."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bisect_causes import digests, put_on_record
from sentinel.adapters.read_only import held_by
from sentinel.config import BisectSettings, Config, LauncherSettings, Run
from sentinel.daemon.probes import probe_jobs
from sentinel.lab.bisect import causes as bisect
from sentinel.lab.probes.command import Folders
from sentinel.lab.probes.guard import Guard
from sentinel.lab.probes.probe import Probe
from sentinel.vocabulary.errors import ConfigError
from tests.adapters.checkpoint_files import deepspeed
from tests.slurm.cluster import Cluster, until
from tests.support.bisected_runs import NAN_FROM, TRAINER, configured
from tests.support.slurm_runs import job_script
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


BATCH = """for file in $RUN/checkpoints/* $RUN/checkpoints/*/*; do echo lost > $file; done
echo written > $SENTINEL_PROBE_CHECKPOINTS/batch-$SLURM_ARRAY_TASK_ID"""

# The script, and its step, try to write to the run's checkpoints, then to their own; then the step waits for a word.
ATTACK = """
import os, pathlib, sys, time
run, own, step = pathlib.Path(sys.argv[1]), pathlib.Path(os.environ["SENTINEL_PROBE_CHECKPOINTS"]), sys.argv[2]
for file in [*run.rglob("*"), run / "made"]:
    try:
        file.write_bytes(b"lost")
    except OSError:
        pass
(own / f"{step}-{os.environ['SLURM_ARRAY_TASK_ID']}").write_text("written")
while step == "step" and not (own / "end").exists():
    time.sleep(0.1)
"""


def test_a_probe_of_an_array_is_one_task_that_can_not_write_to_the_run_nor_end_another_probe(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if held_by()[0] is None:
        pytest.skip("neither Landlock nor namespaces work here")
    run, code = tmp_path / "run", tmp_path / "code"
    deepspeed(run / "checkpoints", 10)
    code.mkdir()
    (code / "attack.py").write_text(ATTACK)
    start = f"{shlex.quote(sys.executable)} attack.py $RUN/checkpoints"
    lines = ["#!/bin/bash", "#SBATCH --array=2-4%1", "#SBATCH --time=10", f"#SBATCH --error={run}/checkpoints/err"]
    lines += [f"RUN={run}", BATCH, f"srun --ntasks=1 {start} step --lr 1", ""]
    (code / "train.sh").write_text("\n".join(lines))
    config = Config(
        run=Run(name="x", checkpoints=run / "checkpoints", state_dir=run / "state"),
        launcher=LauncherSettings(kind="slurm", script=code / "train.sh", working_directory=code, query_interval_s=0.1),
        bisect=BisectSettings(options=("--save={checkpoints}",)),
    )
    before = digests(run)
    one, other = (
        Probe(name=name, tag="global_step10", global_step=10, until_step=20) for name in ("control", "lower-lr")
    )
    folder = run / "state" / "bisect" / "incident-1"
    with pytest.raises(ConfigError, match="which is the run's"):
        probe_jobs(config)(one, folder / one.name)
    monkeypatch.setattr(Guard, "named_in", lambda *_: None)
    monkeypatch.setattr(Folders, "stand_in", lambda *_: None)
    jobs = [probe_jobs(config)(probe, folder / probe.name) for probe in (one, other)]
    for job in jobs:
        job.begin(one, run / "checkpoints")
    until(lambda: all((job.folder / "checkpoints" / "step-2").exists() for job in jobs))
    assert len(cluster.jobs("%i %T")) == 2, "one task of each, and none that waits"
    jobs[0].stop()
    assert [line.split()[1] for line in cluster.jobs("%i %T")] == ["RUNNING"]
    (jobs[1].folder / "checkpoints" / "end").touch()
    until(lambda: not cluster.jobs("%i %T"))
    assert [p.name for p in sorted((jobs[1].folder / "checkpoints").glob("[bs]*-*"))] == ["batch-2", "step-2"]
    assert {k: v for k, v in digests(run).items() if "bisect" not in k} == before
    assert "sentinel:" not in jobs[1].log.read_text()
    assert re.search("Permission denied|Read-only file system", (jobs[1].folder / "job.err").read_text())
