"""The files KILL and SAVE, watched by a thread; and what a start reads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.vocabulary.errors import OverridesError
from tests.adapters.pagers import until
from trainer_hooks.control import start, watched_files
from trainer_hooks.control.step_requests import KILL_FILE, STOP
from trainer_hooks.control.watched_files import WatchedFiles
from trainer_hooks.errors import Guard


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "PERIOD_S", 0.01)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WatchedFiles]:
    watched = watching(tmp_path, Guard())
    yield watched
    watched.close()


def watching(folder: Path, guard: Guard) -> WatchedFiles:
    watched = WatchedFiles(folder, guard, standing=("KILL",), written=("SAVE",))
    assert watched.first_look(10)
    return watched


def test_kill_counts_once_also_where_it_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "KILL").touch()
    watched = watching(tmp_path, Guard())
    assert watched.levels == {"KILL": 1, "SAVE": 0}
    watched.close()


def test_a_fifo_in_place_of_kill_counts_and_is_not_opened(tmp_path: Path, files: WatchedFiles) -> None:
    os.mkfifo(tmp_path / "KILL")
    until(lambda: files.levels["KILL"] == 1)


def test_kill_as_a_link_that_leads_nowhere_counts(tmp_path: Path, files: WatchedFiles) -> None:
    (tmp_path / "KILL").symlink_to("nowhere")
    until(lambda: files.levels["KILL"] == 1)
    assert start.agreed_start(tmp_path) == start.Start(levels={STOP: KILL_FILE})


def test_save_counts_each_time_that_it_is_written_and_not_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "SAVE").touch()
    watched = watching(tmp_path, Guard())
    assert watched.levels["SAVE"] == 0
    for number in (1, 2, 3):
        if number == 2:
            (tmp_path / "SAVE").unlink()
            time.sleep(0.1)
        (tmp_path / "SAVE").write_text(str(number))
        until(lambda number=number: watched.levels["SAVE"] == number)  # type: ignore[misc]
    watched.close()


def test_a_file_that_cannot_be_looked_at_keeps_its_level_and_the_first_look_that_succeeds_is_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, broken, guard = os.stat, threading.Event(), Guard()

    def fails(path: Any, *given: Any, **named: Any) -> Any:
        if broken.is_set() and Path(path).name in ("KILL", "SAVE"):
            raise OSError(116, "Stale file handle")
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", fails)
    broken.set()
    (tmp_path / "SAVE").touch()
    watched = watching(tmp_path, guard)
    time.sleep(0.1)
    assert (watched.levels, guard.errors) == ({"KILL": 0, "SAVE": 0}, 2)
    broken.clear()
    time.sleep(0.1)
    assert watched.levels["SAVE"] == 0
    (tmp_path / "SAVE").write_text("{}")
    until(lambda: watched.levels["SAVE"] == 1)
    broken.set()
    until(lambda: guard.errors == 4)  # a new failure of each is an error again
    assert watched.levels["SAVE"] == 1
    watched.close()


def test_a_look_that_hangs_holds_up_the_thread_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, hanging, freed = os.stat, threading.Event(), threading.Event()

    def hangs(path: Any, *given: Any, **named: Any) -> Any:
        if threading.current_thread().name == "sentinel-files":
            hanging.set()
            freed.wait(30)
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", hangs)
    watched = WatchedFiles(tmp_path, Guard(), standing=("KILL",), written=("SAVE",))
    assert hanging.wait(10)
    assert not watched.first_look(0.05)
    assert watched.levels == {"KILL": 0, "SAVE": 0}
    started = time.monotonic()
    watched.close()
    assert time.monotonic() - started < 10  # it would take 30 s to wait for the thread
    freed.set()


def test_overrides_that_are_not_read_in_time_end_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "READ_S", 0.2)
    (tmp_path / "overrides.json").touch()
    answers, opened = threading.Event(), os.open

    def hangs(path: Any, *given: Any, **named: Any) -> int:
        if str(path).endswith("overrides.json"):
            answers.wait(30)
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "open", hangs)
    with pytest.raises(OverridesError, match=r"overrides.json: not read within 0.2 s: the filesystem hangs"):
        start.agreed_start(tmp_path)
    answers.set()  # the reading thread ends


def test_overrides_that_are_a_fifo_end_the_start_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "overrides.json")
    with pytest.raises(OverridesError, match=r"overrides.json: it is no regular file"):
        start.agreed_start(tmp_path)


def test_a_start_knows_of_kill_and_a_look_that_fails_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "KILL").touch()
    assert start.agreed_start(tmp_path) == start.Start(levels={STOP: KILL_FILE})

    stat = os.stat

    def fails(path: Any, *given: Any, **named: Any) -> Any:
        if Path(path).name == "KILL":
            raise OSError(5, "Input/output error")
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", fails)
    assert start.agreed_start(tmp_path) == start.Start()
