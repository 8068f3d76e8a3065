"""Crashes, failed nodes, requeues and hangs under a real Slurm: the run goes on from `latest`, and no rung is spent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.hooks.trainer import command, losses, starts, train
from tests.slurm.cluster import START_SOON, Cluster, until

pytestmark = pytest.mark.full

WORDS = ("--steps", "60", "--save-interval", "10", "--run", "small")
HELD_AT = 35
TRAINER = f"""\
import runpy, sys, time
from pathlib import Path
from trainer_hooks.gpt.train import Trainer

step = Trainer.step

def held(self):
    go = Path(sys.argv[0]).with_name("go")
    stopped = lambda: self.process.stop_asked
    while self.progress.step == {HELD_AT} and not stopped() and (self.hook.attempt == 1 or not go.exists()):
        time.sleep(0.05)
    step(self)

Trainer.step = held
runpy.run_module("trainer_hooks.gpt", run_name="__main__", alter_sys=False)
"""
"""The reference trainer, which goes no further than the middle between two saves before something has happened to it:
however slow those are that look on, it has not ended by then. Its next attempt goes on once it may."""


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that nobody touched."""
    folder = tmp_path_factory.mktemp("untouched")
    train(folder, *WORDS)
    return losses(folder)


class Run:
    def __init__(self, cluster: Cluster, folder: Path, **policy: object) -> None:
        self.cluster, self.folder = cluster, folder
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in policy.items())
        (folder / "small.toml").write_text(
            '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
            '[launcher]\nkind = "slurm"\nquery_interval_s = 0.5\nslurm_timeout_s = 5.0\njob_name = "small"\n'
            f"[watch]\npoll_interval_s = 0.3\n[judge]\nstalled_after_s = 15.0\n[policy]\nmode = 'act'\n{keys}"
        )
        (folder / "held.py").write_text(TRAINER)
        python, _, _, *words = command(folder, *WORDS)
        quoted = " ".join(f"'{word}'" for word in (python, folder / "held.py", *words))
        (folder / "train.sh").write_text(f"#!/bin/bash\nexport OMP_NUM_THREADS=1\nexec {quoted}\n")
        (folder / "state").mkdir()

    def submit(self, *options: str) -> str:
        words = ("--parsable", "--job-name=small", *options, "train.sh")
        return self.cluster.slurm("sbatch", *words, cwd=self.folder)

    def is_held(self) -> bool:
        return max(losses(self.folder), default=0) == HELD_AT

    def may_go_on(self) -> None:
        (self.folder / "go").touch()

    @contextmanager
    def watched(self) -> Iterator[subprocess.Popen[str]]:
        line = [sys.executable, "-m", "sentinel", "watch", "--run", str(self.folder / "small.toml")]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where py-spy is
        with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}) as process:
            try:
                yield process
            except AssertionError:
                process.kill()
                print(process.communicate()[1])
                raise
            finally:
                process.kill()

    def ended_well(self, watch: subprocess.Popen[str], untouched: dict[int, float]) -> str:
        """Waits for the end; returns what the watch said. The losses are those of a run that nobody touched."""
        said = watch.communicate(timeout=200)[1]
        assert watch.returncode == 0, said[-3000:]
        assert losses(self.folder) == untouched
        log = self.folder / "state" / "incidents.jsonl"
        assert not log.exists() or '"opened"' not in log.read_text()  # nothing of this is a divergence
        return said


def test_a_node_that_fails_takes_a_job_with_it_and_the_run_goes_on_elsewhere(
    cluster: Cluster, tmp_path: Path, untouched: dict[int, float]
) -> None:
    run = Run(cluster, tmp_path, restart_on_crash=True)
    (tmp_path / "small.toml").write_text(
        (tmp_path / "small.toml").read_text().replace("[watch]", "exclude_after_failures = 1\n[watch]")
    )
    run.may_go_on()
    job = run.submit("--no-requeue")
    with run.watched() as watch:
        until(run.is_held)
        (node,) = cluster.jobs("%N")
        cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            until(lambda: len(starts(tmp_path)) == 2)
        finally:
            cluster.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME", expect=None)
        run.ended_well(watch, untouched)
    second = starts(tmp_path)[1]
    assert second.job_id != job
    assert (second.resumed_from or 0) >= 30
    assert json.loads((tmp_path / "state" / "nodes.json").read_text()) == {node: [job]}
    shown = cluster.slurm("scontrol", "show", "job", str(second.job_id))
    assert f"ExcNodeList={node}" in shown


def test_an_admins_requeue_is_waited_for(cluster: Cluster, tmp_path: Path, untouched: dict[int, float]) -> None:
    run = Run(cluster, tmp_path, restart_on_crash=True)
    run.may_go_on()
    job = run.submit("--requeue")
    with run.watched() as watch:
        until(run.is_held)
        cluster.slurm("scontrol", "requeue", job)
        until(lambda: cluster.jobs("%T") != ["COMPLETING"])
        cluster.slurm("scontrol", "update", f"JobId={job}", START_SOON, expect=None)
        run.ended_well(watch, untouched)
    assert [s.job_id for s in starts(tmp_path)] == [job, job]
    assert [s.restart_count for s in starts(tmp_path)] == [0, 1]


def test_a_job_that_hangs_is_stopped_by_two_witnesses_and_started_again_with_what_waits_behind_it(
    cluster: Cluster, tmp_path: Path, untouched: dict[int, float]
) -> None:
    run = Run(cluster, tmp_path, restart_on_hang=True)
    job = run.submit()
    behind = run.submit(f"--dependency=afterany:{job}")
    with run.watched() as watch:
        until(run.is_held)
        until(lambda: len(starts(tmp_path)) == 2)
        second = starts(tmp_path)[1]
        left = cluster.jobs("%A %E")
        assert {line.split()[0] for line in left} & {job, behind} == set()
        assert f"afterany:{second.job_id}(unfulfilled)" in " ".join(left)
        waiting = next(line.split()[0] for line in left if "afterany" in line)
        cluster.slurm("scancel", waiting)  # it would train on
        run.may_go_on()
        run.ended_well(watch, untouched)
    (stacks,) = (tmp_path / "state" / "stacks").iterdir()
    assert "trainer_hooks" in stacks.read_text()
    assert not psutil.pid_exists(starts(tmp_path)[0].pid or 0)
