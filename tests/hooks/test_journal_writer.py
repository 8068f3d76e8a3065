"""The metrics journal's writer: attempts that nobody else has, and what a disk can do to their lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import RunStarted, Sample, encode
from tests.adapters.pagers import until
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt, journal_path


def sample(step: int) -> Sample:
    return Sample(attempt=1, global_step=step, time_unix_s=1.0, loss=float(step))


def test_attempts_that_race_get_numbers_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: create_attempt(tmp_path), range(64)))
    assert sorted(number for number, _ in made) == list(range(1, 65))
    for _, descriptor in made:
        os.close(descriptor)


def test_a_number_is_never_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "attempts"
    folder.mkdir()
    (folder / "0007.jsonl").touch()
    (folder / "notes.txt").touch()
    number, descriptor = create_attempt(tmp_path)
    os.close(descriptor)
    assert number == 8


def test_a_line_that_the_disk_cut_short_spoils_no_other(tmp_path: Path) -> None:
    """A limit on file sizes stands in for a full disk: the write stops inside a line, and later there is room.

    Meanwhile the journal's modification time is the sign of life.
    """
    program = """
import os, resource, signal, sys, threading
from pathlib import Path
from sentinel.vocabulary.sample import Sample, encode
from tests.adapters.pagers import until
from trainer_hooks.export.journal_writer import JournalWriter, create_attempt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, descriptor = create_attempt(Path(sys.argv[1]))
writer = JournalWriter(descriptor)
append, tried = writer._append, threading.Semaphore(0)
def append_and_tell(line):
    try:
        append(line)
    finally:
        tried.release()
writer._append = append_and_tell
def put(step):
    writer.put(encode(Sample(attempt=1, global_step=step, time_unix_s=1.0, loss=1.0)))
    tried.acquire()
put(1)
room = os.fstat(descriptor).st_size + 100  # for the beginning of one more line
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
put(2)
os.utime(descriptor, (0, 0))
put(3)
until(lambda: os.fstat(descriptor).st_mtime > 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
put(4)
writer.close()
print(writer.lost)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=200
    )
    journals = Journals(tmp_path)
    steps = [record.global_step for record in journals.poll() if isinstance(record, Sample)]
    assert (steps, int(ran.stdout), journals.unreadable) == ([1, 4], 2, 1)


def test_a_disk_that_hangs_fills_the_queue_and_no_more() -> None:
    """That it is filled at all is the proof that nobody waited: what is in the pipe is read at the end only."""
    reader, writer_end = os.pipe()
    writer = JournalWriter(writer_end)
    line = encode(sample(1))
    for _ in range(12_000):
        writer.put(line)
    assert 1_000 < writer.lost < 2_100
    drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(reader, 1 << 16), b"")], daemon=True)
    drain.start()
    writer.close()
    drain.join(60)
    os.close(reader)


def remove(state: Path) -> None:
    shutil.rmtree(state)


def remove_the_file(state: Path) -> None:
    journal_path(state, 1).unlink()


def move(state: Path) -> None:
    state.rename(state.with_name("elsewhere"))


@pytest.mark.parametrize("take_away", [remove, remove_the_file, move])
def test_a_journal_that_is_taken_away_is_begun_again_with_what_the_attempt_runs_with(
    tmp_path: Path, take_away: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "state"
    number, descriptor = create_attempt(state)
    writer = JournalWriter(descriptor, journal_path(state, number), looks_s=0.0)
    daemon = Journals(state)
    writer.put(encode(RunStarted(attempt=1, time_unix_s=1.0, seed=7)))
    for step in range(1, 20):
        writer.put(encode(sample(step)))
    settle(writer, state, lines=20)
    assert len(daemon.poll()) == 20
    take_away(state)
    assert daemon.poll() == []
    writer.put(encode(sample(20)))
    writer.put(encode(sample(21)))
    writer.close()
    assert [r.seed if isinstance(r, RunStarted) else r.global_step for r in daemon.poll()] == [7, 20, 21]  # type: ignore[union-attr]
    assert (writer.lost, daemon.unreadable) == (0, 0)
    assert len(caplog.messages) == 1


def test_a_file_that_somebody_else_has_put_there_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    number, descriptor = create_attempt(tmp_path)
    path = journal_path(tmp_path, number)
    writer = JournalWriter(descriptor, path, looks_s=0.0)
    writer.put(encode(sample(1)))
    settle(writer, tmp_path, lines=1)
    path.unlink()
    path.write_text("another attempt's\n")
    for step in range(2, 5):
        writer.put(encode(sample(step)))
    writer.close()
    assert path.read_text() == "another attempt's\n"
    assert writer.lost == 3
    (said,) = caplog.messages
    assert "another file" in said


def test_a_folder_that_can_not_be_made_again_costs_lines_until_it_can(tmp_path: Path) -> None:
    state = tmp_path / "state"
    number, descriptor = create_attempt(state)
    writer = JournalWriter(descriptor, journal_path(state, number), looks_s=0.0)
    writer.put(encode(sample(1)))
    settle(writer, state, lines=1)
    shutil.rmtree(state)
    state.write_text("in the way")
    writer.put(encode(sample(2)))
    until(lambda: writer.lost)
    state.unlink()
    writer.put(encode(sample(3)))
    writer.close()
    assert [r.global_step for r in Journals(state).poll() if isinstance(r, Sample)] == [1, 3]
    assert writer.lost == 1


def settle(writer: JournalWriter, state: Path, *, lines: int) -> None:
    """Waits until the thread has written so many lines."""
    until(lambda: journal_path(state, 1).read_bytes().count(b"\n") >= lines)
