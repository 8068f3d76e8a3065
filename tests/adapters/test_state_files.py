"""Journals, incident log, overrides and lock: what survives a crash, and what two of us do to each other."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from sentinel import durable
from sentinel.adapters import incident_log
from sentinel.adapters import lock as run_lock
from sentinel.adapters.checkpoints.trackers import Trackers
from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.adapters.lock import RunLock
from sentinel.adapters.state_files import OverridesFile
from sentinel.durable import make_folders, os_errors_named, write_atomically
from sentinel.plan.incident.log_outcomes import AlertResolved
from sentinel.sources.journals import open_journal
from sentinel.vocabulary.errors import (
    FilesystemRefused,
    FilesystemUnavailable,
    IncidentLogError,
    LineError,
    LockHeld,
    OverridesError,
)
from sentinel.vocabulary.numbers import dump_json, load_object
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.sample import Record, Sample, decode, encode
from tests.adapters.pagers import until
from tests.adapters.synced import synced
from tests.support.log_lines import logged


def line(step: int, attempt: int = 1) -> str:
    return encode(Sample(attempt=attempt, global_step=step, time_unix_s=0.0, loss=3.0)) + "\n"


def steps(records: Sequence[Record]) -> list[int]:
    return [getattr(record, "global_step", 0) for record in records]


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


def test_the_tenth_thousand_attempt_comes_after_the_ninth(tmp_path: Path) -> None:
    for number in (10000, 9999, 2):
        append(tmp_path / "attempts" / f"{number:04d}.jsonl", line(1, attempt=number))
    assert [r.attempt for r in Journals(tmp_path).poll()] == [2, 9999, 10000]


def test_what_was_read_of_an_attempt_is_told_again_and_nothing_newer(tmp_path: Path) -> None:
    first, second = tmp_path / "attempts" / "0001.jsonl", tmp_path / "attempts" / "0002.jsonl"
    append(first, line(1) + "no line\n" + line(2) + "\n" + line(3)[:20])
    append(second, line(3, attempt=2))
    journals = Journals(tmp_path)
    assert list(journals.again(1)) == []
    polled = journals.poll()
    append(first, line(3)[20:] + line(4))
    assert [*journals.again(1), *journals.again(2)] == polled
    assert (list(journals.again(3)), journals.unreadable) == ([], 1)
    assert steps(journals.poll()) == [3, 4]
    assert [s.global_step for s in journals.again(1)] == [1, 2, 3, 4]


def test_a_poll_that_fails_in_its_middle_loses_nothing(tmp_path: Path) -> None:
    append(tmp_path / "attempts" / "0001.jsonl", line(1) + line(2))
    second = tmp_path / "attempts" / "0002.jsonl"
    second.mkdir()  # what is there can't be read
    journals = Journals(tmp_path)
    told: list[Record] = []
    with pytest.raises(OSError, match="0002"):
        told.extend(journals.new())
    second.rmdir()
    append(second, line(3, attempt=2))
    assert steps([*told, *journals.poll()]) == [1, 2, 3]


def test_of_a_journal_that_was_taken_away_nothing_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "attempts" / "0001.jsonl"
    append(path, line(1))
    journals = Journals(tmp_path)
    journals.poll()
    path.unlink()
    assert list(journals.again(1)) == []
    path.mkdir()
    with pytest.raises(FilesystemRefused, match=r"0001\.jsonl"):
        list(journals.again(1))


OVER: dict[str, Any] = {"incident": None, "topic": "down", "reason": "it is there again"}


def test_an_event_torn_by_a_crash_is_cut_off_and_the_rest_stays(tmp_path: Path) -> None:
    log = IncidentLog(tmp_path / "incidents.jsonl")
    assert log.read() == []
    (noted,) = logged({"event": "noted", "best_mean": float("nan")})
    log.append(noted)
    append(tmp_path / "incidents.jsonl", '{"event": "dec')
    assert [e.to_json()["best_mean"] for e in log.read()] == ["nan"]
    IncidentLog(tmp_path / "incidents.jsonl").append(AlertResolved(**OVER, time_unix_s=2.0))
    assert [e.name for e in log.read()] == ["noted", "alert_resolved"]
    assert log.read()[-1] == AlertResolved(**OVER, time_unix_s=2.0)


def test_what_another_sentinel_appends_to_the_incident_log_is_read_and_what_is_as_it_was_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "incidents.jsonl"
    watch, hand = IncidentLog(path), IncidentLog(path)
    assert watch.read() == []
    lines: list[bytes] = []
    load = incident_log.load_object
    monkeypatch.setattr(incident_log, "load_object", lambda text: lines.append(text) or load(text))
    for number in range(3):
        hand.append(*logged({"event": "opened", "n": number}))
        assert [e.more["n"] for e in watch.read()] == list(range(number + 1))
        assert watch.read() == watch.read()
    assert len(lines) == 3
    with path.open("ab") as file:  # a torn line, which becomes whole in the same moment
        file.write(b'{"event": "op')
        file.flush()
        assert len(watch.read()) == 3
        file.write(b'ened", "time_unix_s": 1, "n": 3}\n')
    assert [e.more["n"] for e in watch.read()] == [0, 1, 2, 3]
    path.unlink()
    assert watch.read() == []


@pytest.mark.parametrize("in_place", [False, True], ids=["a new file", "the same file"])
def test_a_log_that_was_repaired_is_read_from_its_beginning(tmp_path: Path, in_place: bool) -> None:
    """Whatever the editor did: renamed a new file over it, or wrote the same one anew; longer, too."""
    path = tmp_path / "incidents.jsonl"
    log = IncidentLog(path)
    for number in range(3):
        log.append(*logged({"event": "opened", "n": number}))
    assert [e.more["n"] for e in log.read()] == [0, 1, 2]
    repaired = "".join(dump_json({"event": "repaired", "n": n, "time_unix_s": 1.0}) + "\n" for n in (0, 1, 3, 4))
    if in_place:
        path.write_text(repaired)
    else:
        (tmp_path / "new").write_text(repaired)
        (tmp_path / "new").replace(path)
    assert [(e.name, e.more["n"]) for e in log.read()] == [("repaired", n) for n in (0, 1, 3, 4)]
    log.append(*logged({"event": "closed", "n": 5}))
    assert [e.more["n"] for e in log.read()] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    "event",
    [
        *(
            "rubbish",
            '{"event": "closed"}',
            '{"event": 7, "time_unix_s": 1}',
            '{"event": "closed", "time_unix_s": "nan"}',
        ),
        *('{"event": "closed", "time_unix_s": 1e300}', '{"event": "closed", "time_unix_s": 1, "incident": "../x"}'),
        '{"event": "alert_firing", "time_unix_s": 1, "topic": []}',
    ],
)
def test_an_event_that_can_not_be_stops_everything_and_is_named_with_its_line(tmp_path: Path, event: str) -> None:
    append(tmp_path / "incidents.jsonl", f'{{"event": "opened", "time_unix_s": 1}}\n{event}\n{{"event": "closed"}}\n')
    with pytest.raises(IncidentLogError, match="line 2"):
        IncidentLog(tmp_path / "incidents.jsonl").read()


def test_an_event_of_a_clock_beyond_the_calendar_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(IncidentLogError, match="seconds since 1970"):
        IncidentLog(tmp_path / "incidents.jsonl").append(AlertResolved(**OVER, time_unix_s=1e12))
    assert IncidentLog(tmp_path / "incidents.jsonl").read() == []


IMPOSSIBLE = [
    *({"global_step": 2**53 + 1}, {"global_step": -1}, {"global_step": 10**400}, {"attempt": 2**64}),
    *({"time_unix_s": 1e12}, {"time_unix_s": "inf"}, {"consumed_tokens": 2**63}, {"seqlen": -8}),
]


@pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=str)
def test_a_sample_that_no_trainer_can_have_made_is_an_unreadable_line_to_every_reader(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    text = json.dumps({**json.loads(line(2)), **wrong}) + "\n"
    append(tmp_path / "attempts" / "0001.jsonl", line(1) + text + line(3))
    journals = Journals(tmp_path)
    assert steps(journals.poll()) == [1, 3]
    assert journals.unreadable == 1
    source = open_journal(tmp_path)
    assert source is not None
    assert [step for chunk in source for step in chunk.steps.tolist()] == [1, 3]
    assert source.unreadable == 1
    with pytest.raises(LineError):
        decode(text)


def test_overrides_are_replaced_whole_and_taken_away_without_loss(tmp_path: Path) -> None:
    file = OverridesFile(tmp_path / "overrides.json")
    assert file.read() is None
    overrides = Overrides(incident="i", rollback="r", anchor=Anchor(global_step=3), standing=TrainingSettings())
    file.write(overrides)
    assert file.read() == overrides
    file.take_away("r")
    assert file.read() is None
    assert [p.name for p in tmp_path.iterdir()] == ["overrides.r.undone.json"]
    (tmp_path / "overrides.json").write_text("{}")
    with pytest.raises(OverridesError, match="schema"):
        file.read()


WRITE = """
import sys
from pathlib import Path
from sentinel.durable import write_atomically
for number in range(int(sys.argv[2])):
    write_atomically(Path(sys.argv[1]), f"{sys.argv[3]} " * 5000)
"""


def test_writers_of_one_file_get_no_errors_and_a_reader_finds_one_of_their_contents_whole(tmp_path: Path) -> None:
    """Processes of their own, as `pause` or `pin` beside the daemon."""
    path = tmp_path / "file"
    write_atomically(path, "first " * 5000)
    words = [[sys.executable, "-c", WRITE, str(path), "150", name] for name in ("one", "two", "three", "four")]
    writers = [subprocess.Popen(w, stderr=subprocess.PIPE, text=True) for w in words]
    whole = {f"{name} " * 5000 for name in ("first", "one", "two", "three", "four")}
    read = [path.read_text()]
    while any(writer.poll() is None for writer in writers):
        read.append(path.read_text())
    assert [writer.communicate()[1] for writer in writers] == [""] * 4
    assert set(read) <= whole
    assert len(set(read)) > 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_or_was_killed_leaves_the_old_content_and_no_file_for_long(tmp_path: Path) -> None:
    path, hour_s = tmp_path / "latest", 3600
    write_atomically(path, "old")
    ours, young, of_another = (
        tmp_path / f".{name}.new" for name in ("latest.0123456789abcdef", "latest." + "f" * 16, "x")
    )
    for left in (ours, young, of_another, tmp_path / "latest.0123456789abcdef.new"):
        left.write_text("hal")
        age_s = hour_s - 10 if left == young else hour_s + 0.5
        os.utime(left, (time.time() - age_s,) * 2)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert (path.read_text(), sorted(tmp_path.iterdir())) == ("old", before)
    write_atomically(path, "new")
    assert (path.read_text(), sorted(tmp_path.iterdir())) == ("new", [p for p in before if p != ours])


def test_a_write_whose_temporary_file_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, removed = os.fsync, []

    def slow(descriptor: int) -> None:
        if not removed:
            removed.extend(tmp_path.glob(".*.new"))
            removed[0].unlink()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    write_atomically(tmp_path / "file", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "new")]


def test_a_write_returns_when_the_file_and_then_its_name_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fsync, synced = tmp_path / "latest", os.fsync, []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        synced.append(("folder" if stat.S_ISDIR(status.st_mode) else status.st_size, path.exists()))

    monkeypatch.setattr(os, "fsync", noted)
    write_atomically(path, "global_step20")
    assert synced == [(len("global_step20"), False), ("folder", True)]


def test_folders_are_made_with_those_above_them_and_are_on_the_disk(tmp_path: Path) -> None:
    for _ in range(2):
        with synced(tmp_path):
            make_folders(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_folder_that_another_process_makes_at_the_same_moment_is_there_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def beaten(folder: Path, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        mkdir(folder)
        mkdir(folder, mode, parents, exist_ok)

    monkeypatch.setattr(Path, "mkdir", beaten)
    make_folders(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_daemon_that_writes_for_months_does_not_run_out_of_descriptors(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        write_atomically(tmp_path / "file", str(number))
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20


HOLD = """
import sys, time
from pathlib import Path
from typing import Any
from sentinel.adapters.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def held_elsewhere(folder: Path, program: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder's lock."""
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def of_this_process(state_dir: Path) -> dict[str, Any]:
    """What a lock says of who holds it."""
    with RunLock(state_dir):
        return load_object((state_dir / "lock").read_text())


def test_a_lock_of_one_that_was_killed_and_not_waited_for_is_taken_over(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as holder:
        with pytest.raises(LockHeld, match=f"process {holder.pid}"), RunLock(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        until(lambda: RunLock(tmp_path).held_by() is None)  # once its last thread is gone, which might write
        assert psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE
        with RunLock(tmp_path) as lock:
            os.utime(tmp_path / "lock", (0, 0))
            lock.renew()  # a probe goes by the lock's own age, and so does another host
            assert time.time() - (tmp_path / "lock").stat().st_mtime < 60
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_one_whose_main_thread_has_ended_is_held_while_another_thread_lives(tmp_path: Path) -> None:
    """It may still write; the system shows it as a zombie."""
    ending = HOLD.replace("time.sleep(600)", "import ctypes; ctypes.CDLL(None).pthread_exit(None)")
    with held_elsewhere(tmp_path, ending) as holder:
        until(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE)
        assert RunLock(tmp_path).held_by() == f"process {holder.pid} on {socket.gethostname()}"
        holder.send_signal(signal.SIGKILL)
        until(lambda: RunLock(tmp_path).held_by() is None)


def test_a_clock_that_is_set_frees_no_lock_of_a_process_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunLock(tmp_path):
        hour_s = 3600.0  # what the kernel calls the time of the boot moves with the clock
        began_unix_s = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: began_unix_s(process) + hour_s)
        with pytest.raises(LockHeld), RunLock(tmp_path):
            pass


def test_another_container_by_the_same_name_is_another_machine(tmp_path: Path) -> None:
    there = {**of_this_process(tmp_path), "machine": "this boot, pid:[1]", "pid": 2**22 - 1, "token": "away"}
    (tmp_path / "lock").write_text(dump_json(there))
    with pytest.raises(LockHeld), RunLock(tmp_path, lease_s=60):
        pass


def test_a_lease_is_measured_by_the_clock_of_the_filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "token": "away"}))
    late_s = time.time() + 3600.0
    monkeypatch.setattr(time, "time", lambda: late_s)
    with pytest.raises(LockHeld, match="elsewhere"), RunLock(tmp_path, lease_s=60):
        pass


def test_who_is_busy_for_longer_than_a_lease_keeps_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.adapters.lock._RENEW_S", 0.05)
    with RunLock(tmp_path):
        for path in (tmp_path / "lock", tmp_path / "lock.lives"):
            path.touch()
            os.utime(path, (0, 0))  # no turn was made for a long time
        until(lambda: (tmp_path / "lock.lives").stat().st_mtime > 0)
        assert (tmp_path / "lock").stat().st_mtime == 0  # which a probe is to see
        there = {**load_object((tmp_path / "lock").read_text()), "machine": "another"}
        (tmp_path / "lock").write_text(dump_json(there))
        os.utime(tmp_path / "lock", (0, 0))
        with pytest.raises(LockHeld), RunLock(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_filesystem_hangs_has_one_thread_waiting_and_holds_up_no_other_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.adapters.lock._RENEW_S", 0.02)
    (tmp_path / "hung").mkdir()
    hanging, works_again, lives = RunLock(tmp_path / "hung"), Event(), RunLock.lives
    monkeypatch.setattr(RunLock, "lives", lambda lock: works_again.wait(20) if lock is hanging else lives(lock))
    with hanging, RunLock(tmp_path):
        for _ in range(5):
            (tmp_path / "lock.lives").unlink(missing_ok=True)
            until((tmp_path / "lock.lives").exists)
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("sentinel-lock")]
        names = [thread.name for thread in ours]
        assert names.count("sentinel-locks") == 1
        assert 1 <= names.count("sentinel-lock") <= 2  # one hangs, one may be at work
        assert all(thread.daemon for thread in ours)  # the process can end all the same
        works_again.set()
    until(lambda: not any(thread.name.startswith("sentinel-lock") for thread in threading.enumerate()))


def test_each_of_many_locks_is_renewed_as_often_as_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    period_s: float = 0.2
    renewed: list[RunLock] = []
    monkeypatch.setattr("sentinel.adapters.lock._RENEW_S", period_s)

    def noted(lock: RunLock) -> None:
        renewed.append(lock)

    monkeypatch.setattr(RunLock, "lives", noted)
    locks = [RunLock(tmp_path / str(number)) for number in range(4)]
    with contextlib.ExitStack() as held:
        for number, lock in enumerate(locks):
            (tmp_path / str(number)).mkdir()
            held.enter_context(lock)
        began_s = time.monotonic()
        until(lambda: len(renewed) >= 12)
        took_s = time.monotonic() - began_s
    assert set(renewed) == set(locks)
    assert period_s < took_s < 20 * period_s


def test_a_lease_outlasts_three_renewals_that_are_lost(tmp_path: Path) -> None:
    lease_s = inspect.signature(RunLock).parameters["lease_s"].default
    with RunLock(tmp_path):
        assert lease_s >= 4 * run_lock._RENEW_S


def test_a_lock_is_renewed_again_when_there_are_threads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on processes may be reached for a while."""
    monkeypatch.setattr("sentinel.adapters.lock._RENEW_S", 0.02)
    start, refused = threading.Thread.start, []

    def starting(thread: threading.Thread) -> None:
        if thread.name == "sentinel-lock" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    with RunLock(tmp_path):
        until((tmp_path / "lock.lives").exists)
    assert len(refused) == 3


def test_a_lock_that_a_crash_has_left_empty_is_nobodys_to_who_looks_and_held_for_a_lease(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert RunLock(tmp_path).held_by() is None
    with pytest.raises(LockHeld), RunLock(tmp_path):
        pass
    os.utime(tmp_path / "lock", (0, 0))
    with RunLock(tmp_path) as lock:
        lock.renew()


@pytest.mark.parametrize(("silent_s", "held"), [(59, True), (60, False)])
def test_a_lease_is_over_with_its_last_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_s: int, held: bool
) -> None:
    (tmp_path / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "token": "away"}))
    os.utime(tmp_path / "lock", (10**9, 10**9))
    monkeypatch.setattr(time, "time", lambda: float(10**9 + silent_s))
    assert (RunLock(tmp_path, lease_s=60).held_by() is not None) is held


def test_a_lock_that_others_take_again_and_again_is_given_up_after_three_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def beaten(source: Path, destination: Path) -> None:
        asked.append(source)
        raise FileExistsError(errno.EEXIST, "File exists", str(destination))

    monkeypatch.setattr(os, "link", beaten)
    with pytest.raises(LockHeld, match="it changes hands faster than it can be taken"), RunLock(tmp_path):
        pass
    assert len(asked) == 3
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_find_a_stale_lock_one_gets_it(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(dump_json({**of_this_process(tmp_path), "pid": 2**22 - 1, "token": "dead"}))
    racers = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(6)
    ]
    try:
        until(lambda: sum(r.poll() is None for r in racers) == 1)
        (winner,) = (r for r in racers if r.poll() is None)
        assert f'"pid": {winner.pid}' in (tmp_path / "lock").read_text()
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


@pytest.mark.parametrize(("silent_s", "taken"), [(60.0, False), (180.0, True)])
def test_a_lock_of_another_host_is_taken_over_after_two_minutes(tmp_path: Path, silent_s: float, taken: bool) -> None:
    """The lease that is used, and that the runbook names."""
    (tmp_path / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "token": "away"}))
    at_s = (tmp_path / "lock").stat().st_mtime - silent_s
    os.utime(tmp_path / "lock", (at_s, at_s))
    assert (RunLock(tmp_path).held_by() is None) is taken
    with contextlib.nullcontext() if taken else pytest.raises(LockHeld, match="elsewhere"), RunLock(tmp_path):
        pass


def test_a_lock_that_another_took_over_in_the_same_moment_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a stale lock and its removal another process may have removed it and made its own."""
    alive = dump_json({**of_this_process(tmp_path), "token": "quicker"})
    (tmp_path / "lock").write_text(dump_json({**load_object(alive), "pid": 2**22 - 1, "token": "dead"}))
    rename = Path.rename

    def quicker(path: Path, destination: Path) -> Path:
        if path.name == "lock" and "dead" in path.read_text():
            path.write_text(alive)
        return rename(path, destination)

    monkeypatch.setattr(Path, "rename", quicker)
    with pytest.raises(LockHeld, match=f"process {os.getpid()}"), RunLock(tmp_path):
        pass
    assert (tmp_path / "lock").read_text() == alive
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_a_lock_whose_link_was_made_and_reported_as_failed_is_taken_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS: the reply is lost, and the client asks again."""
    link, asked = os.link, []

    def twice(source: Path, destination: Path) -> None:
        link(source, destination)
        asked.append(source)
        if len(asked) == 1:
            raise FileExistsError(errno.EEXIST, "File exists", str(source))

    monkeypatch.setattr(os, "link", twice)
    with RunLock(tmp_path) as lock:
        lock.renew()
        assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_who_lost_the_lock_may_do_nothing_more(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        (tmp_path / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "start": 0.0, "token": "other"}))
        with pytest.raises(LockHeld, match="took the lock over"):
            lock.renew()
    assert "elsewhere" in (tmp_path / "lock").read_text()


def test_what_was_left_by_those_killed_while_they_took_the_lock_is_swept(tmp_path: Path) -> None:
    alive = {**of_this_process(tmp_path), "token": "alive"}
    dead = {**alive, "pid": 2**22 - 1, "token": "dead"}
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


UNAVAILABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)


@pytest.mark.parametrize("number", [*UNAVAILABLE, errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_the_system_says_no_to_is_named_with_the_file_and_the_reason(number: int) -> None:
    kind, why = FilesystemUnavailable if number in UNAVAILABLE else FilesystemRefused, os.strerror(number)
    with pytest.raises(kind, match=f"^incidents.jsonl .*: {why}$"), os_errors_named("incidents.jsonl"):
        raise OSError(number, why)
    with pytest.raises(kind, match=r"^/a/file .*"), os_errors_named("incidents.jsonl"):
        raise OSError(number, why, "/a/file")
    unknown = pytest.raises(FilesystemUnavailable, match=r"^incidents.jsonl .*: no number$")
    with unknown, os_errors_named("incidents.jsonl"):
        raise OSError("no number")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no other filesystem here")  # noqa: S108 - only looked for
def test_a_second_name_on_another_filesystem_is_a_whole_copy_also_after_one_that_was_cut_short(tmp_path: Path) -> None:
    source, place = tmp_path / "0002.jsonl", tmp_path / "linked"
    source.write_bytes(b"lines")
    durable.link_or_copy(source, place)
    assert place.samefile(source)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        copied = Path(other, source.name)
        if copied.parent.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("tmp_path is on the same filesystem")
        durable.part_of(copied).write_bytes(b"li")
        durable.link_or_copy(source, copied)
        assert [(p.name, p.read_bytes()) for p in copied.parent.iterdir()] == [(source.name, b"lines")]
        with pytest.raises(FileExistsError):
            durable.link_or_copy(source, copied)


def test_a_tracker_that_is_written_again_leaves_nothing_of_a_killed_write_beside_it(tmp_path: Path) -> None:
    saves, room = tmp_path / "saves", tmp_path / "room"
    for folder in (saves, room):
        folder.mkdir()
    (saves / "latest").write_text("global_step40")
    trackers = Trackers(saves)
    trackers.keep(room)
    (saves / ".latest.0123456789abcdef.new").write_text("glob")
    trackers.bring_back(room)
    assert [path.name for path in saves.iterdir()] == ["latest"]
