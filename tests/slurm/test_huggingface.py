"""A Qwen that diverges by itself under Hugging Face's Trainer, as an array of jobs under a real Slurm, rescued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hooks.trainer import starts
from tests.slurm.cluster import Cluster
from tests.support.rescued_runs import CONFIGURATION, PROGRAM, ROOT, assert_rescued
from tests.support.slurm_runs import incidents, job_script

pytestmark = (
    pytest.mark.soak
)  # the array of the reference trainer, and this trainer on two ranks, are in the second tier


@pytest.mark.timeout(900)
def test_an_array_of_two_rank_jobs_of_huggingfaces_trainer_is_rescued(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "state").mkdir()
    launcher = 'kind = "slurm"\njob_name = "qwen"\nquery_interval_s = 0.4\nslurm_timeout_s = 3.0'
    (folder / "llama.toml").write_text(CONFIGURATION.replace("command = {command}", launcher))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words = [sys.executable, *ranks, str(PROGRAM), str(folder), "--model", "qwen2", "--zero", "1"]
    script = job_script(folder, ["env", f"PYTHONPATH={ROOT}", *words])
    submitted = ("--job-name=qwen", "--array=1-5%1", "--ntasks=2", "--output=log-%A_%a.txt")
    array = cluster.slurm("sbatch", "--parsable", *submitted, str(script), cwd=folder)
    line = [sys.executable, "-m", "sentinel", "watch", "--run", str(folder / "llama.toml")]
    watched = subprocess.run(line, capture_output=True, text=True, timeout=800, check=False)
    assert watched.returncode == 0, watched.stderr[-3000:]
    (incident,) = incidents(folder)
    assert_rescued(folder, incident)
    first, *_, last = (str(start.job_id).partition("_")[0] for start in starts(folder))
    assert first == array != last
