"""`[launcher] kind = "commands"` on a real scheduler: Slurm, by nothing but commands of the configuration."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.adapters.servers import running
from tests.slurm.cluster import Cluster, until
from tests.support.slurm_runs import handed_in, incidents, job_script

LISTED = '{"job": "%A", "name": "%j", "state": "%T"}'


@pytest.mark.full
def test_a_divergence_is_rolled_back_and_its_job_stopped_and_started_by_commands(
    cluster: Cluster, diverged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(diverged, folder, symlinks=True)
    script = job_script(folder, ["sleep", "600"])
    table = {
        "start": ["sbatch", "--export=ALL", "--job-name={name}", "--output=/dev/null", str(script)],
        "stop": ["scancel", "{job}"],
        "list": ["squeue", "--noheader", "--states=all", f"--format={LISTED}"],
    }
    launcher = '[launcher]\nkind = "commands"\njob_name = "demo"\nquery_interval_s = 0.4\n\n[commands]\n'
    launcher += "".join(f"{key} = {json.dumps(words)}\n" for key, words in table.items())
    launcher += 'states = {completing = "running", timeout = "ended", node_fail = "ended"}\n\n'
    text = (folder / "demo.toml").read_text()
    begin, end = text.index("[launcher]"), text.index("[watch]")
    (folder / "demo.toml").write_text(text[:begin] + launcher + text[end:])
    for name in ("demo", "another-runs"):
        cluster.slurm("sbatch", "--job-name=" + name, "--output=/dev/null", str(script), cwd=folder)
    until(lambda: len([line for line in cluster.jobs("%j %T") if line.endswith("RUNNING")]) == 2)
    watch = [sys.executable, "-m", "sentinel", "watch", "--run", str(folder / "demo.toml")]
    with running(*watch, folder=folder, name="watch"):
        until(lambda: handed_in(folder))
        (rollback,) = incidents(folder)[0].rollbacks
        names = [line for line in cluster.jobs("%j %T") if "COMPLETING" not in line]
    (ours,) = [line for line in names if line.startswith("sentinel-")]
    assert f"-{rollback.id}-1 " in ours
    assert [line for line in names if line != ours] == ["another-runs RUNNING"]
    assert (folder / "checkpoints" / "latest").read_text() == rollback.target_tag
    (start,) = json.loads((folder / "state" / "commands.json").read_text())["starts"]
    assert start["answered"]
