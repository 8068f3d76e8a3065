"""Divergences under a real Slurm: recovered; and carried out to the end whatever is killed in between."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from sentinel.demo.configuration import Restarts, trainer_command, write_configuration
from sentinel.vocabulary.sample import RunFinished
from tests.adapters.servers import running
from tests.hooks.trainer import records, starts
from tests.slurm.cluster import Cluster, until
from tests.support.slurm_runs import for_slurm, handed_in, incidents, job_script

pytestmark = pytest.mark.full

ACTIONS = 8
"""verify, prepare, stop, quarantine, point latest, cut TensorBoard, write overrides, start."""
RECORDS = 2 + 2 * ACTIONS
"""What a recovery writes until its job is handed in: opened, decided, and an intent and a done for each action."""

KILLED_AFTER = """
import os, signal, sys
import sentinel.adapters.incident_log as log
append, left = log.IncidentLog.append, [int(sys.argv[1])]
sys.argv[0:2] = ["sentinel"]
def counting(self, event):
    append(self, event)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
log.IncidentLog.append = counting
from sentinel.cli import main
main()
"""


def watch(folder: Path, *, killed_after: int = 0) -> list[str]:
    program = ["-c", KILLED_AFTER, str(killed_after)] if killed_after else ["-m", "sentinel"]
    return [sys.executable, *program, "watch", "--run", str(folder / "demo.toml")]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("restart", ["auto", pytest.param("job", marks=pytest.mark.soak)])
def test_an_array_of_two_rank_jobs_that_diverges_is_recovered(
    cluster: Cluster, tmp_path: Path, restart: Restarts
) -> None:
    """As an on-call engineer would have it: nothing but the configuration, the array, and sentinel beside it. In
    place by default: the same task from beginning to end."""
    folder, in_place = tmp_path, restart == "auto"
    write_configuration(folder, seed=0, restart=restart)
    for_slurm(folder)
    (folder / "state").mkdir()
    trainer = trainer_command(folder, 0)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "--"]
    script = job_script(folder, [trainer[0], *ranks, *trainer[2:]])
    submitted = ("--job-name=demo", "--array=1-5%1", "--ntasks=2", "--output=log-%A_%a.txt", "--comment=do not touch")
    submitted += ("--time=2:00:00",)  # of which [policy] min_remaining_s has to be left
    array = cluster.slurm("sbatch", "--parsable", *submitted, str(script), cwd=folder)
    watched = subprocess.run(watch(folder), capture_output=True, text=True, timeout=800, check=False)
    assert watched.returncode == 0, watched.stderr[-3000:]
    (incident,) = incidents(folder)
    assert (incident.status, incident.outcome) == ("closed", "recovered")
    attempts, ends = starts(folder), {r.attempt: r for r in records(folder)}
    told = [f"{a.job_id}: {a.rollback} from {a.resumed_from}, last {ends[a.attempt]}" for a in attempts]
    story = "\n".join([*told, watched.stderr[-6000:]])
    # an attempt that ends by itself before anyone stops it is followed by its array's next task: that is Slurm's part
    assert [rollback for rollback, _ in groupby(a.rollback for a in attempts)] == [
        None,
        *(r.id for r in incident.rollbacks),
    ], story
    for before, after in pairwise(attempts):
        end = ends[before.attempt]
        assert end.time_unix_s <= after.time_unix_s, story  # never two at once
        if before.rollback == after.rollback and isinstance(end, RunFinished) and end.reason == "finished":
            assert after.resumed_from == end.global_step, story  # and no step is made twice
    arrays = [str(a.job_id).partition("_")[0] for a in attempts]
    assert arrays[0] == array
    begun = [next(a for a in attempts if a.rollback == r.id) for r in incident.rollbacks]
    assert {a.in_place for a in begun} == {in_place}, story
    assert len(set(arrays)) == (1 if in_place else 1 + len(incident.rollbacks)), story
    assert arrays == sorted(arrays, key=int), story  # none of an old array's tasks began after a new one's
    left = cluster.jobs("%F|%K|%k|%P|%Z", "--states=PENDING,RUNNING,COMPLETING")
    assert {line.split("|")[0] for line in left} <= {arrays[-1]}
    last = cluster.slurm("squeue", "-h", "-a", "-t", "all", "-j", arrays[-1], "-o", "%k").splitlines()[0]
    mark = f" sentinel:demo~[0-9a-f]{{8}}:{incident.rollbacks[-1].id}:0"
    assert re.fullmatch(f"do not touch{'' if in_place else mark}", last)


@pytest.fixture
def ill(cluster: Cluster, diverged: Path, tmp_path: Path) -> Path:
    """A run that has diverged, and whose array is still in the queue. What is submitted for it only waits."""
    folder = tmp_path / "run"
    shutil.copytree(diverged, folder, symlinks=True)
    for_slurm(folder)
    script = job_script(folder, ["sleep", "600"])
    cluster.slurm("sbatch", "--parsable", "--job-name=demo", "--array=1-3%1", str(script), cwd=folder)
    until(lambda: any(line.endswith("_1 RUNNING") for line in cluster.jobs()))
    return folder


def carried_out(cluster: Cluster, folder: Path) -> None:
    """What must be so in the end, whatever happened on the way."""
    (incident,) = incidents(folder)
    (rollback,) = incident.rollbacks
    (array,) = set(cluster.jobs("%F"))
    until(lambda: sorted(cluster.jobs("%K %T")) == ["1 RUNNING", "2-3%1 PENDING"])
    (comment,) = set(cluster.jobs("%k"))
    assert re.fullmatch(f"sentinel:demo~[0-9a-f]{{8}}:{rollback.id}:0", comment)
    assert (folder / "checkpoints" / "latest").read_text() == rollback.target_tag
    live = {int(p.name[11:]) for p in (folder / "checkpoints").glob("global_step*")}
    assert max(live) == rollback.target_step
    overrides = json.loads((folder / "state" / "overrides.json").read_text())
    assert overrides["rollback"] == rollback.id
    assert "held" not in " ".join(cluster.jobs("%r")).lower()
    assert array.isdigit()


@pytest.mark.parametrize(
    "after", [n if n % 3 == 0 else pytest.param(n, marks=pytest.mark.soak) for n in range(1, RECORDS + 1)]
)
def test_a_daemon_killed_between_any_two_actions_is_taken_up_by_the_next(
    cluster: Cluster, ill: Path, after: int
) -> None:
    killed = subprocess.run(watch(ill, killed_after=after), capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    _watched_until_handed_in(ill)
    carried_out(cluster, ill)


@pytest.mark.parametrize(
    "after", [n if n % 8 == 5 else pytest.param(n, marks=pytest.mark.soak) for n in range(1, RECORDS + 1)]
)
def test_a_controller_that_goes_away_between_any_two_actions_is_waited_for(
    cluster: Cluster, ill: Path, after: int
) -> None:
    killed = subprocess.run(watch(ill, killed_after=after), capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    cluster.stop_controller()
    with running(*watch(ill), folder=ill, name="watch") as process:
        until(lambda: "Slurm does not answer" in (ill / "watch.log").read_text() or process.poll() is not None)
        before = sorted(p.name for p in (ill / "checkpoints").iterdir())
        _makes_turns(ill, 3)
        assert process.poll() is None
        assert sorted(p.name for p in (ill / "checkpoints").iterdir()) == before  # nothing moves while nothing is known
        cluster.start_controller()
        until(lambda: handed_in(ill))
        process.terminate()
        assert process.wait(60) == 0
    carried_out(cluster, ill)


def _makes_turns(folder: Path, count: int) -> None:
    """Waits until the watch has renewed its lock so often: it does in each turn."""
    lock = folder / "state" / "lock"
    for _ in range(count):
        seen_ns = lock.stat().st_mtime_ns
        until(lambda since=seen_ns: lock.stat().st_mtime_ns > since)  # type: ignore[misc]


def _watched_until_handed_in(folder: Path) -> None:
    with running(*watch(folder), folder=folder, name="watch") as process:
        until(lambda: handed_in(folder) or process.poll() is not None)
        process.terminate()
        assert process.wait(60) == 0, (folder / "watch.log").read_text()[-2000:]


def test_undo_cancels_what_was_submitted_and_leaves_nothing_held(cluster: Cluster, ill: Path) -> None:
    _watched_until_handed_in(ill)
    undone = subprocess.run(
        [sys.executable, "-m", "sentinel", "undo", "--run", str(ill / "demo.toml"), "--yes"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert undone.returncode == 0, undone.stderr
    assert cluster.jobs() == []
    assert (ill / "checkpoints" / "latest").read_text() == "global_step240"
    said = undone.stdout.splitlines()
    typed = said[said.index("the job is not started; this starts it again:") + 1 :]
    cluster.slurm("/bin/bash", "-c", "\n".join(typed), cwd=ill)
    until(lambda: sorted(cluster.jobs("%K %T")) == ["1 RUNNING", "2-3%1 PENDING"])  # as it was submitted first


def test_a_submission_that_slurm_would_refuse_is_found_before_the_watch_begins_and_the_old_job_goes_on(
    cluster: Cluster, ill: Path
) -> None:
    for_slurm(ill, sbatch_arguments=["--partition=nosuch"])
    watched = subprocess.run(watch(ill), capture_output=True, text=True, timeout=120, check=False)
    assert watched.returncode == 2
    assert "invalid partition" in watched.stderr.lower()
    assert "The run is not watched" in watched.stderr
    assert sorted(cluster.jobs("%K %T")) == ["1 RUNNING", "2-3%1 PENDING"]
    assert (ill / "checkpoints" / "latest").read_text() == "global_step240"


def test_a_head_that_never_reports_its_start_is_not_excused_by_the_tasks_that_wait_behind_it(
    cluster: Cluster, ill: Path
) -> None:
    text = (ill / "demo.toml").read_text()
    (ill / "demo.toml").write_text(text.replace("[policy]\n", "[policy]\nconfirm_within_s = 4.0\n"))
    watched = subprocess.run(watch(ill), capture_output=True, text=True, timeout=120, check=False)
    assert watched.returncode == 4, watched.stderr[-2000:]
    assert "incident-1-r1 was started 4 s ago and has not reported its start" in watched.stderr
