"""Many runs whose jobs are in one Slurm: it is asked once for all of them."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path
from threading import Barrier, Thread

import pytest

from sentinel.adapters.slurm import SlurmClient, SlurmLauncher, SlurmSettings
from sentinel.adapters.slurm.queue import Queue, Queues
from sentinel.config.run_files import config_path
from sentinel.vocabulary.sample import RunStarted, encode
from tests.slurm.cluster import Cluster, until
from tests.support.fleets import Folder, verdict

pytestmark = pytest.mark.full

RUNS = 12
ASKED_EVERY_S = 1.0
HELD_S = 10.0
"""How long the daemon holds what jobs were submitted as."""


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A squeue before the real one that takes note of each call."""
    real = next(p for p in map(Path, os.environ["PATH"].split(":")) if (p / "squeue").exists()) / "squeue"
    calls = tmp_path / "calls"
    calls.touch()
    wrapper = tmp_path / "bin" / "squeue"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {real} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return calls


def looks(calls: Path) -> int:
    """Queries for all jobs of the user."""
    return sum("--user" in line for line in calls.read_text().splitlines())


def test_a_dozen_runs_are_one_query_and_not_a_dozen(cluster: Cluster, counted: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    names = [f"r{number}" for number in range(RUNS)]
    jobs = {}
    for name in names:
        folder.run(name, launcher="slurm", pace_s=0.3)
        path = config_path(name, tmp_path / "runs")
        launcher = f'job_name = "{name}"\nworking_directory = "{tmp_path}"\nquery_interval_s = {ASKED_EVERY_S}\n'
        path.write_text(path.read_text().replace("[watch]", f"{launcher}[watch]"))
        folder.trained(name)
        held = ("sbatch", "--parsable", "--hold", f"--job-name={name}", "--wrap=sleep 300")
        jobs[name] = cluster.slurm(*held, cwd=tmp_path)
    until(lambda: len(cluster.jobs("%i")) == RUNS)
    began_s = time.monotonic()
    with folder.watch("--all") as watch:
        watch.shows(*(verdict(name, "pending") for name in names))
        since_s, before, turns = time.monotonic(), looks(counted), turns_of(watch.page())
        until(lambda: turns_of(watch.page()) >= turns + 20 * RUNS)
        asked = looks(counted) - before
        recorded = sum("--json" in line for line in counted.read_text().splitlines())  # what each was submitted as
        now_s = time.monotonic()
        assert 1 <= asked <= 1 + (now_s - since_s) / ASKED_EVERY_S  # as often as one run alone asks
        assert recorded <= 2 + (now_s - began_s) / HELD_S
        cluster.slurm("scancel", jobs["r3"])
        watch.shows(verdict("r3", "down"), verdict("r4", "pending"))
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0


def test_the_jobs_that_twenty_runs_name_are_one_query_and_not_twenty(
    cluster: Cluster, counted: Path, tmp_path: Path
) -> None:
    """Another account's jobs, which the runs' journals name: the account's own queue does not show them."""
    folder, jobs = Folder(tmp_path), dict[str, str]()
    for name in (f"r{number}" for number in range(20)):
        folder.run(name, launcher="slurm", pace_s=0.3)
        path = config_path(name, tmp_path / "runs")
        path.write_text(path.read_text().replace("[watch]", f"query_interval_s = {ASKED_EVERY_S}\n[watch]"))
        held = ("sbatch", "--parsable", "--hold", "--uid=65534", "--wrap=sleep 300")
        jobs[name] = cluster.slurm(*held, cwd=Path("/"))
        folder.trained(name)
        samples = folder.journal(name).read_text()
        started = RunStarted(attempt=1, time_unix_s=time.time(), job_id=jobs[name])
        folder.journal(name).write_text(encode(started) + "\n" + samples)

    def queries() -> int:
        return sum("--jobs=" in line for line in counted.read_text().splitlines())

    with folder.watch("--all") as watch:
        watch.shows(*(verdict(name, "pending") for name in jobs))
        since_s, before, turns = time.monotonic(), queries(), turns_of(watch.page())
        until(lambda: turns_of(watch.page()) >= turns + 20 * len(jobs))
        asked = queries() - before
        assert 1 <= asked <= 1 + 2 * (time.monotonic() - since_s) / ASKED_EVERY_S  # some are asked along early
        cluster.slurm("scancel", jobs["r3"])
        watch.shows(verdict("r3", "down"), verdict("r4", "pending"))
        watch.hear(signal.SIGTERM)
        assert watch.ends() == 0


def turns_of(page: str) -> int:
    return sum(int(float(line.split()[-1])) for line in page.splitlines() if line.startswith("sentinel_turns_total{"))


def test_an_answer_is_shared_within_the_age_that_each_asks_for_and_never_where_it_has_to_be_fresh(
    cluster: Cluster, counted: Path, tmp_path: Path
) -> None:
    now = [0.0]
    queues = Queues()
    launchers = []
    for name, interval_s in (("often", 5.0), ("seldom", 60.0)):
        client = SlurmClient()
        settings = SlurmSettings(run=name, state_dir=tmp_path / name, query_interval_s=interval_s)
        queue = queues.of(client)
        queue._clock = lambda: now[0]
        launchers.append(SlurmLauncher(client, settings, queue=queue))
    often, seldom = launchers
    for at, who, calls in ((0, seldom, 1), (4, often, 1), (6, often, 2), (60, seldom, 2), (66, seldom, 3)):
        now[0] = at
        assert who.look([]).known
        assert looks(counted) == calls, at
    seldom.fenced([], None)
    assert looks(counted) == 4
    assert queues.of(SlurmClient(user="nobody")) is not queues.of(SlurmClient())


def test_who_comes_while_it_is_asked_takes_the_last_answer_and_what_is_forgotten_meanwhile_is_not_kept() -> None:
    """A submission while another run's query is under way: its answer does not have the job."""
    now, asked, answer = [0.0], Barrier(2, timeout=30), Barrier(2, timeout=30)
    calls: list[float] = []

    class Client(SlurmClient):
        def jobs(self):  # type: ignore[no-untyped-def]
            calls.append(now[0])
            if len(calls) == 2:
                asked.wait()
                answer.wait()
            return ()

    queue = Queue(Client(), clock=lambda: now[0])
    queue.within(5.0)
    now[0] = 10.0
    other = Thread(target=queue.within, args=(5.0,), daemon=True)
    other.start()
    asked.wait()
    assert queue.within(5.0) == ()  # does not wait
    queue.forget()
    answer.wait()
    other.join(30)
    queue.within(3600.0)
    assert calls == [0.0, 10.0, 10.0]
