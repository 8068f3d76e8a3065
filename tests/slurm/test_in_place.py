"""Recovery in place under a real Slurm: the same job and the same processes; a new job where that is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import Parked, Record, RunStarted, Sample
from tests.e2e.live_trainer import build, configure, events, sentinel
from tests.slurm.cluster import START_SOON, Cluster, until

PROGRAM = Path(__file__).parents[1] / "support" / "parking_trainer.py"
LAUNCHER = 'kind = "slurm"\njob_name = "live"\nquery_interval_s = 0.4\nslurm_timeout_s = 5.0\nstop_grace_s = 30'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return build(tmp_path / "run")


def configured(run: Path, policy: str = "", *, quiet_s: int = 1) -> None:
    configure(run, LAUNCHER, judge=f"quiet_s = {quiet_s}", policy=f"confirm_within_s = 60\n{policy}")


def submitted(cluster: Cluster, run: Path, *words: str) -> str:
    """The job, once its trainer has saved anew. Where the run has a file `deaf` it sees no PARK before a requeue."""
    script = run / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --job-name=live\n"
        'does=obeys; [ -e deaf ] && [ -z "$SLURM_RESTART_COUNT" ] && does=deaf\n'
        f'exec {sys.executable} {PROGRAM} {run} "$does"\n'
    )
    job = cluster.slurm("sbatch", "--parsable", *words, str(script), cwd=run)
    until((run / "checkpoints" / "global_step40").exists)
    return job


def records(run: Path) -> list[Record]:
    return Journals(run / "state").poll()


def starts(run: Path) -> list[RunStarted]:
    return [one for one in records(run) if isinstance(one, RunStarted)]


def trains(run: Path, attempt: int) -> bool:
    return any(isinstance(one, Sample) and one.attempt == attempt for one in records(run))


def rolled_back(run: Path, *words: str) -> None:
    ran = sentinel(run, "rollback", "--to", "global_step10", "--yes", *words)
    assert ran.returncode == 0, ran.stderr


def planned(run: Path, *words: str) -> dict[str, Any]:
    """How the dry run says that it would restart."""
    shown = sentinel(run, "rollback", "--to", "global_step10", "--dry-run", "--json", *words)
    assert shown.returncode == 0, shown.stderr
    way: dict[str, Any] = json.loads(shown.stdout)["restart"]
    return way


def test_the_array_keeps_its_task_and_its_process_until_a_person_wants_a_new_job(cluster: Cluster, run: Path) -> None:
    configured(run)
    array = submitted(cluster, run, "--array=1-3%1", "--time=UNLIMITED", "--comment=do not touch")
    form = "%i %T %k %S"
    before = cluster.jobs(form)
    way = planned(run)
    assert (way["way"], starts(run)[-1].attempt) == ("in_place", 1)  # a dry run parks nothing
    assert way["why"].endswith("in the same processes: attempt 1 has declared that it can park")
    rolled_back(run)
    until(lambda: trains(run, 2))
    assert cluster.jobs(form) == before
    first, second = starts(run)
    assert (second.job_id, second.pid, second.in_place) == (f"{array}_1", first.pid, True)
    assert (second.rollback, second.resumed_from) == ("incident-1-r1", 10)
    kept = (run / "state" / "jobs" / f"{array}.sh").read_text()  # a new job can be made of it, whatever ends this one
    assert kept == (run / "train.sh").read_text()

    rolled_back(run, "--restart", "job")
    until(lambda: trains(run, 3))
    third = starts(run)[-1]
    assert (third.rollback, third.resumed_from, third.in_place) == ("incident-2-r1", 10, False)
    again = str(third.job_id).removesuffix("_1")
    assert int(again) > int(array)
    assert sorted(cluster.jobs("%i %T")) == [f"{again}_1 RUNNING", f"{again}_[2-3%1] PENDING"]


@pytest.mark.full
def test_a_job_that_ends_too_soon_is_followed_by_a_new_one(cluster: Cluster, run: Path) -> None:
    configured(run, "min_remaining_s = 3600")
    job = submitted(cluster, run, "--time=10")
    way = planned(run)
    assert way["way"] == "job"
    assert way["why"].endswith(f"s are left of the time limit of {job}, and [policy] min_remaining_s is 3600")
    rolled_back(run)
    until(lambda: trains(run, 2))
    first, second = starts(run)
    assert (second.in_place, second.pid == first.pid, second.job_id == job) == (False, False, False)
    assert cluster.jobs("%i %T") == [f"{second.job_id} RUNNING"]


@pytest.mark.full
@pytest.mark.parametrize(("what", "while_parked"), [("requeued", False), ("requeued", True), ("killed", True)])
def test_an_attempt_that_begins_meanwhile_is_not_taken_for_the_parked_one(
    cluster: Cluster, run: Path, what: str, while_parked: bool
) -> None:
    """The job is requeued before its trainer has parked, or while it is; or the trainer is killed, and the next task of
    its array begins by itself."""
    configured(run, quiet_s=10 if while_parked else 1)  # so long it stays parked at least
    if not while_parked:
        (run / "deaf").touch()
    job = submitted(cluster, run, "--time=2:00:00", *(["--array=1-3%1"] if what == "killed" else []))
    line = [sys.executable, "-m", "sentinel", "rollback", "--run", str(run / "live.toml")]
    with subprocess.Popen([*line, "--to", "global_step10", "--yes"], stdin=subprocess.DEVNULL) as typed:
        until(parked_of(run) if while_parked else (run / "state" / "PARK").exists)
        if what == "killed":
            os.kill(starts(run)[0].pid or 0, signal.SIGKILL)
        else:
            cluster.slurm("scontrol", "requeue", job)
            cluster.slurm("scontrol", "update", f"JobId={job}", START_SOON, expect=None)
        assert typed.wait(200) == 0
    until(lambda: starts(run)[-1].rollback == "incident-1-r1" and trains(run, starts(run)[-1].attempt))
    last = starts(run)[-1]
    assert (last.resumed_from, last.in_place) == (10, False)
    assert [line for line in cluster.jobs("%i %T") if "PENDING" not in line] == [f"{last.job_id} RUNNING"]
    assert {int(group) for group in cluster.jobs("%F")} == {int(str(last.job_id).partition("_")[0])}
    assert {one.attempt for one in records(run) if isinstance(one, Parked)} <= {1}
    assert [e["event"] for e in events(run)].count("in_place_given_up") == 1


def parked_of(run: Path) -> Callable[[], bool]:
    return lambda: any(isinstance(one, Parked) for one in records(run))
