"""Journals, incident log, overrides and lock: what survives a crash, and what two of us do to each other."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.lock import RunLock
from sentinel.adapters.overrides_file import OverridesFile
from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import (
    FilesystemRefused,
    FilesystemUnavailable,
    IncidentLogError,
    LockHeld,
    OverridesError,
)
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor, Overrides, Standing
from sentinel.vocabulary.sample import Sample, encode


def line(step: int, attempt: int = 1) -> str:
    return encode(Sample(attempt=attempt, global_step=step, time_unix_s=0.0, loss=3.0)) + "\n"


def append(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_a_journal_is_followed_across_attempts_and_torn_lines(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    assert journals.poll() == []
    first, second = tmp_path / "attempts" / "0001.jsonl", tmp_path / "attempts" / "0002.jsonl"
    append(first, line(1) + line(2)[:20])
    assert [(r.attempt, getattr(r, "global_step", 0)) for r in journals.poll()] == [(1, 1)]
    append(first, line(2)[20:])
    append(second, line(3, attempt=2))
    assert [(r.attempt, getattr(r, "global_step", 0)) for r in journals.poll()] == [(1, 2), (2, 3)]
    assert journals.poll() == []
    assert journals.unreadable == 0


def test_lines_that_make_no_sense_are_counted_and_passed_over(tmp_path: Path) -> None:
    append(tmp_path / "attempts" / "0001.jsonl", line(1) + '{"kind": "sam\n' + "\0\0\0\n" + line(2))
    journals = Journals(tmp_path)
    assert [getattr(r, "global_step", 0) for r in journals.poll()] == [1, 2]
    assert journals.unreadable == 2


def test_the_tenth_thousand_attempt_comes_after_the_ninth(tmp_path: Path) -> None:
    for number in (10000, 9999, 2):
        append(tmp_path / "attempts" / f"{number:04d}.jsonl", line(1, attempt=number))
    assert [r.attempt for r in Journals(tmp_path).poll()] == [2, 9999, 10000]


def test_an_event_torn_by_a_crash_is_cut_off_and_the_rest_stays(tmp_path: Path) -> None:
    log = IncidentLog(tmp_path / "incidents.jsonl")
    assert log.read() == []
    log.append({"event": "opened", "best_mean": float("nan")})
    append(tmp_path / "incidents.jsonl", '{"event": "dec')
    assert log.read() == [{"event": "opened", "best_mean": "nan"}]
    IncidentLog(tmp_path / "incidents.jsonl").append({"event": "closed"})
    assert [e["event"] for e in log.read()] == ["opened", "closed"]


def test_a_line_that_makes_no_sense_in_the_incident_log_stops_everything(tmp_path: Path) -> None:
    append(tmp_path / "incidents.jsonl", '{"event": "opened"}\nrubbish\n{"event": "closed"}\n')
    with pytest.raises(IncidentLogError, match="line 2"):
        IncidentLog(tmp_path / "incidents.jsonl").read()


def test_overrides_are_replaced_whole_and_taken_away_without_loss(tmp_path: Path) -> None:
    file = OverridesFile(tmp_path / "overrides.json")
    assert file.read() is None
    overrides = Overrides(incident="i", rollback="r", anchor=Anchor(global_step=3), standing=Standing())
    file.write(overrides)
    assert file.read() == overrides
    file.take_away("r")
    assert file.read() is None
    assert [p.name for p in tmp_path.iterdir()] == ["overrides.r.undone.json"]
    (tmp_path / "overrides.json").write_text("{}")
    with pytest.raises(OverridesError, match="schema"):
        file.read()


def test_a_second_sentinel_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(LockHeld, match=f"process {os.getpid()}"), RunLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


HOLD = """
import sys, time
from pathlib import Path
from sentinel.adapters.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_of_the_dead_is_taken_over(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeld), RunLock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunLock(tmp_path) as lock:
        lock.renew()


def test_of_many_that_find_a_stale_lock_one_gets_it(tmp_path: Path) -> None:
    dead = {"host": socket.gethostname(), "pid": 2**22 - 1, "start": 0.0, "token": "dead"}
    (tmp_path / "lock").write_text(dump_json(dead))
    racers = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(6)
    ]
    end = time.monotonic() + 30
    while sum(r.poll() is None for r in racers) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    alive = [r for r in racers if r.poll() is None]
    assert len(alive) == 1
    assert f'"pid": {alive[0].pid}' in (tmp_path / "lock").read_text()
    for racer in racers:
        racer.kill()
        racer.communicate()


def test_a_lock_of_another_host_holds_until_its_lease_is_over(tmp_path: Path) -> None:
    away = {"host": "elsewhere", "pid": 1, "start": 0.0, "token": "away"}
    (tmp_path / "lock").write_text(dump_json(away))
    with pytest.raises(LockHeld, match="elsewhere"), RunLock(tmp_path, lease_s=60):
        pass
    os.utime(tmp_path / "lock", (0, psutil.boot_time() - 3600))
    with RunLock(tmp_path, lease_s=60):
        pass


def test_who_lost_the_lock_may_do_nothing_more(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        (tmp_path / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "start": 0.0, "token": "other"}))
        with pytest.raises(LockHeld, match="took the lock over"):
            lock.renew()
    assert "elsewhere" in (tmp_path / "lock").read_text()


def test_what_was_left_by_those_killed_while_they_took_the_lock_is_swept(tmp_path: Path) -> None:
    dead = {"host": socket.gethostname(), "pid": 2**22 - 1, "start": 0.0, "token": "dead"}
    me = psutil.Process()
    alive = {"host": socket.gethostname(), "pid": me.pid, "start": me.create_time(), "token": "alive"}
    (tmp_path / ".lock.dead").write_text(dump_json(dead))
    (tmp_path / ".lock.stale.dead").write_text(dump_json(dead))
    (tmp_path / ".lock.alive").write_text(dump_json(alive))
    (tmp_path / ".lock.torn").write_bytes(b"\xff")
    (tmp_path / ".lock.old").touch()
    os.utime(tmp_path / ".lock.old", (0, 0))
    with RunLock(tmp_path):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock.alive", ".lock.torn"]  # who may live still wants it


def test_a_folder_that_can_not_be_written_is_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    away, no_folder = tmp_path / "away", tmp_path / "file"
    no_folder.touch()
    with pytest.raises(FilesystemUnavailable, match=r"away/.* can't be read or written now: No such file"):
        RunLock(away).__enter__()
    with pytest.raises(FilesystemRefused, match=r"file/.* can't be read or changed: Not a directory"):
        RunLock(no_folder).__enter__()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, FilesystemUnavailable),
        (errno.EDQUOT, FilesystemUnavailable),
        (errno.EIO, FilesystemUnavailable),
        (errno.ESTALE, FilesystemUnavailable),
        (errno.EACCES, FilesystemRefused),
        (errno.EPERM, FilesystemRefused),
        (errno.EROFS, FilesystemRefused),
    ],
)
def test_what_the_system_says_no_to_is_named_with_the_file_and_the_reason(number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"^incidents.jsonl .*: {os.strerror(number)}$"), os_errors_named("incidents.jsonl"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(kind, match=r"^/a/file .*"), os_errors_named("incidents.jsonl"):
        raise OSError(number, os.strerror(number), "/a/file")
