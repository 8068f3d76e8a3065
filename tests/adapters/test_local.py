"""The local launcher on real processes: found by looking, stopped until seen gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sentinel.act.overlap import stranger
from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.errors import ConfigError, JobStillAlive
from sentinel.vocabulary.sample import RunStarted
from tests.adapters.pagers import until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
HALF_DEAD = [
    sys.executable,
    "-c",
    """
import ctypes, os, threading, time

def write():
    while True:
        open("shard", "a").write("x")
        time.sleep(0.01)

threading.Thread(target=write).start()
print("up", flush=True)
exit_of_this_thread_alone = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # then a zombie that still writes
ctypes.CDLL(None).syscall(exit_of_this_thread_alone, 0)
""",
]
WITH_CHILD = [sys.executable, "-c", f"import subprocess; print('up', flush=True); subprocess.run({SLEEP!r})"]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[LocalJobs]:
    made = LocalJobs(tmp_path / "state")
    yield made
    made.stop(grace_s=0.2)


def start(jobs: LocalJobs, command: list[str], tmp_path: Path, **extra: str) -> int:
    log = tmp_path / "job.log"
    before = log.stat().st_size if log.exists() else 0
    pid = jobs.start(command, cwd=tmp_path, extra_env=extra, log_path=log)
    until(lambda: log.stat().st_size > before)
    return pid


def reported(pid: int, **more: Any) -> RunStarted:
    """As the process's own hook reports its start."""
    began = psutil.Process(pid).create_time()
    where: dict[str, Any] = {"host": socket.gethostname(), "pid": pid, "process_start_unix_s": began}
    return RunStarted(attempt=1, time_unix_s=began, **where | more)


def test_a_job_is_found_again_by_a_daemon_that_did_not_start_it(jobs: LocalJobs, tmp_path: Path) -> None:
    pid = start(jobs, SLEEP, tmp_path, SENTINEL_ROLLBACK="incident-1-r1")
    (found,) = LocalJobs(tmp_path / "state").writers()
    assert (found.pid, found.rollback) == (pid, "incident-1-r1")
    assert LocalJobs(tmp_path / "other").writers() == ()
    assert os.getpgid(pid) == pid != os.getpgrp()


def test_a_zombie_whose_threads_still_write_is_a_writer(jobs: LocalJobs, tmp_path: Path) -> None:
    pid = start(jobs, HALF_DEAD, tmp_path)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    until((tmp_path / "shard").exists)
    assert [w.pid for w in jobs.writers()] == [pid]
    jobs.stop(grace_s=0.2)
    size = (tmp_path / "shard").stat().st_size
    time.sleep(0.1)
    assert (tmp_path / "shard").stat().st_size == size


def test_stopping_sees_everything_gone_the_children_too(jobs: LocalJobs, tmp_path: Path) -> None:
    start(jobs, WITH_CHILD, tmp_path)
    until(lambda: len(jobs.writers()) == 2)
    pids = [w.pid for w in jobs.writers()]
    jobs.stop(grace_s=10)
    assert jobs.writers() == ()
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_who_does_not_listen_is_made_to_end(jobs: LocalJobs, tmp_path: Path) -> None:
    start(jobs, STUBBORN, tmp_path)
    began = time.monotonic()
    jobs.stop(grace_s=0.5)
    assert time.monotonic() - began >= 0.5
    assert jobs.writers() == ()


def test_a_trainer_that_a_person_started_is_found_by_its_journal(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL, start_new_session=True) as trainer:
        also, jobs = reported(trainer.pid), LocalJobs(tmp_path / "state")
        assert [w.pid for w in jobs.writers([also])] == [trainer.pid]
        assert jobs.writers([replace(also, process_start_unix_s=also.time_unix_s - 100)]) == ()
        assert jobs.writers([replace(also, process_start_unix_s=None)]) == ()
        jobs.stop(grace_s=10, also=[also])
        assert trainer.wait(60) != 0


@pytest.mark.parametrize(("environment", "rollback"), [({}, "incident-1-r1"), ({"PATH": "/usr/bin"}, None)])
def test_what_a_process_that_ends_was_started_for_is_what_its_journal_reports(
    tmp_path: Path, environment: dict[str, str], rollback: str | None
) -> None:
    """As of one that was begun without any variable, nothing of its environment can be read."""
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE, env=environment, start_new_session=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"up\n"
        started = reported(trainer.pid, rollback="incident-1-r1")
        (writer,) = LocalJobs(tmp_path / "state").writers([started])
        trainer.kill()
    assert (writer.pid, writer.rollback, writer.not_ours) == (trainer.pid, rollback, None)


@pytest.mark.parametrize("foreign", [{"host": "elsewhere"}, {"boot_id": "another"}, {"pid_namespace": "pid:[1]"}])
def test_a_process_of_that_number_here_is_not_the_trainer_that_a_journal_names_elsewhere(
    tmp_path: Path, foreign: dict[str, str]
) -> None:
    with subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL, start_new_session=True) as other:
        here, jobs = reported(other.pid), LocalJobs(tmp_path / "state")
        assert [w.pid for w in jobs.writers([here])] == [other.pid]
        assert jobs.writers([replace(here, **foreign)]) == ()
        other.kill()


def test_the_output_goes_to_the_log_and_an_earlier_rollback_is_not_inherited(
    jobs: LocalJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SENTINEL_ROLLBACK", "of-another-life")
    start(jobs, SLEEP, tmp_path)
    assert jobs.writers()[0].rollback is None
    assert (tmp_path / "job.log").read_text() == "up\n"


def test_a_command_that_is_not_there_is_an_error_of_the_configuration(jobs: LocalJobs, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-program"):
        jobs.start(["no-such-program"], cwd=tmp_path, extra_env={}, log_path=tmp_path / "job.log")


HOLDS = "import sys, time; held = open(sys.argv[1], 'w'); print('up', flush=True); time.sleep(600)"


def holding(state: Path) -> list[str]:
    """A trainer whose hook reports to that state folder."""
    (state / "heartbeats").mkdir(parents=True, exist_ok=True)
    return [sys.executable, "-c", HOLDS, str(state / "heartbeats" / "rank-0.json")]


@contextmanager
def typed(command: list[str], state: Path) -> Iterator[subprocess.Popen[str]]:
    """A command as a person types it in a shell that exports SENTINEL_STATE_DIR."""
    environment = dict(os.environ, SENTINEL_STATE_DIR=str(state))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_what_an_exported_variable_was_handed_on_to_is_never_stopped(jobs: LocalJobs, tmp_path: Path) -> None:
    start(jobs, SLEEP, tmp_path)
    with typed(SLEEP, tmp_path / "state") as upload, typed(holding(tmp_path / "other"), tmp_path / "state") as other:
        (doubt,) = [w for w in jobs.writers() if w.not_ours is not None]
        assert doubt.pid == upload.pid  # the other is another run's, by its heartbeat
        with pytest.raises(JobStillAlive, match=rf"process {upload.pid} .* carries this run's SENTINEL_STATE_DIR"):
            jobs.stop(grace_s=0.2)
        assert len(jobs.writers()) == 2  # the run's own trains on: nothing was stopped
        upload.kill()
        upload.wait()
        jobs.stop(grace_s=0.2)
        assert jobs.writers() == ()
        assert other.poll() is None


def test_a_launcher_is_the_runs_for_the_sake_of_its_ranks_and_no_shell_that_has_started_more(tmp_path: Path) -> None:
    jobs, rank = LocalJobs(tmp_path / "state"), holding(tmp_path / "state")
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    second = f"subprocess.Popen({SLEEP!r}, stdout=subprocess.DEVNULL, env=env)"
    launcher = f"import os, subprocess; env = os.environ | {meet!r}; {second}; subprocess.run({rank!r}, env=env)"
    with typed([sys.executable, "-c", launcher], tmp_path / "state") as alone:
        until(lambda: [w.not_ours for w in jobs.writers()] == [None, None, None])
        jobs.stop(grace_s=0.2)
        assert alone.wait(30) != 0
    shell = f"import subprocess; subprocess.Popen({SLEEP!r}, stdout=subprocess.DEVNULL); subprocess.run({rank!r})"
    with typed([sys.executable, "-c", shell], tmp_path / "state") as more:
        until(lambda: len(jobs.writers()) == 3)
        assert len([w for w in jobs.writers() if w.not_ours is None]) == 1
        with pytest.raises(JobStillAlive):
            jobs.stop(grace_s=0.2)
        assert more.poll() is None
        for child in psutil.Process(more.pid).children(recursive=True):
            child.kill()


def test_a_copy_of_a_run_does_not_stop_the_trainer_of_the_original(tmp_path: Path) -> None:
    with typed(holding(tmp_path / "original"), tmp_path / "original") as trainer:
        jobs = LocalJobs(tmp_path / "copy")
        with pytest.raises(JobStillAlive, match="is named by a journal of this run, and reports to"):
            jobs.stop(grace_s=0.2, also=[reported(trainer.pid)])
        assert trainer.poll() is None


def test_a_trainer_that_was_started_by_hand_as_configured_is_the_runs_before_it_reports(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path / "state", [Path(sys.executable).name, *SLEEP[1:]])
    with typed(["/usr/bin/env", *SLEEP], tmp_path / "state") as trainer:
        (writer,) = jobs.writers()
        assert (writer.pid, writer.not_ours is None) == (trainer.pid, True)


def test_who_writes_the_judged_log_is_the_runs_and_who_reads_it_is_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    jobs = LocalJobs(tmp_path / "state", judged_log=log)
    opens = "import sys, time; f = open(sys.argv[1], sys.argv[2]); print(flush=True); time.sleep(600)"
    with (
        typed([sys.executable, "-c", opens, str(log), "a"], tmp_path / "state") as trainer,
        typed([sys.executable, "-c", opens, str(log), "r"], tmp_path / "state"),
    ):
        assert [w.pid for w in jobs.writers() if w.not_ours is None] == [trainer.pid]


@pytest.mark.parametrize(
    ("newest", "is_stranger"),
    [
        ({"run": "toy"}, True),
        ({"run": "tr8"}, False),
        ({"run": None}, False),
        ({"run": "as configured"}, False),
        ({"run": "toy", "resumed_from": 40}, False),  # it goes on from the run's own checkpoint
        ({"run": "toy", "rollback": "incident-1-r1"}, False),
    ],
)
def test_a_training_of_another_name_that_begins_in_the_runs_state_folder_is_a_stranger(
    newest: dict[str, Any], is_stranger: bool
) -> None:
    started = [RunStarted(attempt=1, time_unix_s=1.0, run="tr8"), RunStarted(attempt=2, time_unix_s=2.0, **newest)]
    assert (stranger(started, "as configured") is not None) is is_stranger
    assert stranger(started[1:], "as configured") is None
