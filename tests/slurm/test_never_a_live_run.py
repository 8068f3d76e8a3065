"""A healthy job under a real Slurm, and a sentinel that does not see it in the queue that it looks at."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.slurm import SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.adapters.slurm.client import Answer, run_command
from sentinel.plan.observation import Life
from sentinel.vocabulary.sample import RunStarted
from tests.e2e.live_trainer import attempts, build, configure, events, files, sentinel
from tests.slurm.cluster import Cluster, until

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
SLURM = 'kind = "slurm"\nquery_interval_s = 0.4\nslurm_timeout_s = 5.0\n'


@pytest.fixture
def run(cluster: Cluster) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sentinel-live-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield build(Path(folder).resolve())


@contextmanager
def training(cluster: Cluster, run: Path, before: Sequence[str] = ()) -> Iterator[str]:
    """An array of the account that `before` makes of us, and a trainer that reports its first task as its job: as on a
    node, where its process can't be seen from here."""
    script = run / "train.sh"
    script.write_text("#!/bin/bash\nsleep 300\n")
    words = ("--parsable", "--job-name=live", "--array=1-3%1", f"--chdir={run}", str(script))
    array = cluster.slurm(*before, "sbatch", *words, cwd=run)
    until(lambda: f"{array}_1 RUNNING" in cluster.jobs())
    with reporting(run, f"{array}_1"):
        yield array


@contextmanager
def reporting(run: Path, job: str) -> Iterator[None]:
    line = [sys.executable, str(run / "trainer.py"), str(run), "job_id"]
    with subprocess.Popen(line, env={"SLURM_JOB_ID": job}) as trainer:
        try:
            until(lambda: len(list((run / "checkpoints").glob("global_step*"))) > 2)
            yield
            assert trainer.poll() is None
        finally:
            trainer.kill()


def is_untouched(cluster: Cluster, run: Path, there: set[str], array: str) -> None:
    assert there <= files(run)
    assert attempts(run) == 1
    assert set(cluster.jobs("%F")) == {array}
    assert not [e for e in events(run) if e["event"] == "intent"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("owner", "said_of"),
    [
        (
            (),
            {
                'user = "nobody"': "[launcher] user is nobody, and sentinel runs as root",
                'user = "alcie"': "[launcher] user: there is no account 'alcie'",
            },
        ),
        (NOBODY, {"": "belongs to nobody, and sentinel runs as root: run sentinel as nobody"}),
    ],
    ids=["another user or none is configured", "another account's job"],
)
def test_a_job_that_the_queue_does_not_show_is_left_alone(
    cluster: Cluster, run: Path, owner: tuple[str, ...], said_of: dict[str, str]
) -> None:
    with training(cluster, run, owner) as array:
        for launcher, says in said_of.items():
            configure(run, SLURM + launcher)
            there = files(run)
            for words in (("watch",), ("rollback", "--to", "global_step20", "--yes"), ("doctor",)):
                ran = sentinel(run, *words)
                assert says in ran.stdout + ran.stderr, (words, ran.stdout, ran.stderr)
                assert ran.returncode == (1 if words == ("doctor",) else 2)
            is_untouched(cluster, run, there, array)
            configure(run, SLURM + launcher, mode="observe")
            answer = json.loads(sentinel(run, "status", "--json").stdout)
            assert answer["verdict"] != "down"
            if "alcie" not in launcher:  # Slurm refuses to look for a user that it does not know
                assert answer["job"]["state"] == "alive"
    cluster.slurm("scancel", array)


@pytest.mark.full
def test_a_job_that_slurm_does_not_know_is_unknown_while_its_journal_grows(cluster: Cluster, run: Path) -> None:
    """As where the journal's job is another cluster's: watch, unattended, with restart_on_crash."""
    configure(run, SLURM)
    with reporting(run, "987654"):
        there = files(run)
        watched = sentinel(run, "watch", within_s=15)
        assert watched.returncode == 0, watched.stderr
        rolled = sentinel(run, "rollback", "--to", "global_step20", "--yes")
        assert rolled.returncode == 1
        assert "was written 0 s ago, but Slurm does not know job 987654" in rolled.stdout
    assert there <= files(run)
    assert cluster.jobs() == []


def test_a_job_that_sentinel_submitted_and_can_not_see_is_not_submitted_again(cluster: Cluster, run: Path) -> None:
    hidden: set[str] = set()

    def hiding(command: Sequence[str], environment: Any, timeout_s: float) -> Answer:
        answer = run_command(command, environment, timeout_s)
        if command[0] != "squeue" or "--json" in command or not hidden:
            return answer
        left = [r for r in answer.stdout.split("\x1e\n") if r.partition("\x1f")[0] not in hidden]
        return Answer(answer.code, "\x1e\n".join(left), answer.stderr)

    script = run / "train.sh"
    script.write_text("#!/bin/bash\nsleep 300\n")
    job = cluster.slurm("sbatch", "--parsable", "--job-name=live", str(script), cwd=run)
    known = [RunStarted(attempt=1, time_unix_s=0.0, job_id=job)]
    settings = SlurmSettings(run="live", state_dir=run / "state", query_interval_s=0.0, job_name="live")
    launcher = SlurmLauncher(SlurmClient(run=hiding), settings)
    launcher.look(known)
    launcher.keep(known)
    cluster.slurm("scancel", job)
    until(lambda: launcher.look(known).process_states[job].life is Life.GONE)
    launcher.start(None, None, known, follow_up=False)
    (again,) = cluster.jobs("%A")
    assert not launcher.look(known).lost
    hidden.add(again)
    lost = launcher.look(known).lost
    assert lost == {None: f"sentinel submitted job {again}, which Slurm does not know and which has reported no start"}
    hidden.clear()
    assert not launcher.look(known).lost
