"""Runs that wait for a lock or for room: what is looked at, when one is taken, and which names a folder has."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sentinel.adapters.lock import RunLock
from sentinel.config import Config, load_config
from sentinel.config.run_files import Chosen
from sentinel.daemon.candidates import Candidate, RunRoom
from sentinel.daemon.folder_check import FolderCheck


@pytest.fixture
def config(tmp_path: Path) -> Config:
    state = tmp_path / "s"
    state.mkdir()
    path = tmp_path / "a.toml"
    path.write_text(f'[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "{state}"\n[launcher]\nkind = "elsewhere"\n')
    return load_config(path)


def test_a_free_run_is_taken_once_and_takes_its_room(config: Config) -> None:
    room, free = RunRoom(1), list[Candidate]()
    candidate = Candidate(config, room, free.append)
    assert not candidate.turn(0.0)
    assert free == [candidate]
    assert not room.take()
    room.give_back()
    assert room.take()


def test_a_run_that_is_locked_is_waited_for_and_said_once_per_holder(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room, free = RunRoom(None), list[Candidate]()
    candidate = Candidate(config, room, free.append)
    with RunLock(tmp_path / "s"):
        assert candidate.turn(0.0)
        assert candidate.turn(0.0)
    assert caplog.text.count("another sentinel watches this run: process") == 1
    assert not candidate.turn(0.0)
    assert free == [candidate]


def test_a_daemon_that_is_full_looks_at_no_lock(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(_: RunLock) -> None:
        raise AssertionError

    monkeypatch.setattr(RunLock, "held_by", looked)
    room = RunRoom(1)
    assert room.take()
    assert Candidate(config, room, lambda _: None).turn(0.0)


def test_locked_runs_leave_the_room_to_others_and_are_no_news_among_several_daemons(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    room = RunRoom(1)
    with RunLock(tmp_path / "s"):
        assert Candidate(config, room, lambda _: None).turn(0.0)
    assert room.take()
    assert "another sentinel" not in caplog.text


def test_a_lock_that_cannot_be_read_is_left_to_the_watch_which_says_what_is_wrong(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: RunLock) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(RunLock, "held_by", stale)
    free = list[Candidate]()
    assert not Candidate(config, RunRoom(None), free.append).turn(0.0)
    assert len(free) == 1


@pytest.mark.parametrize(("others", "least_s", "most_s"), [(1, 5.0, 15.0), (9_000, 45.0, 135.0)])
def test_looks_are_rarer_among_many_candidates_and_never_in_step(
    config: Config, others: int, least_s: float, most_s: float
) -> None:
    candidate = Candidate(config, RunRoom(None), lambda _: None, lambda: others)
    paces = {candidate.pace_s for _ in range(50)}
    assert len(paces) > 40
    assert least_s <= min(paces) <= max(paces) <= most_s


def test_a_configuration_counts_as_removed_once_it_was_missing_twice(tmp_path: Path) -> None:
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.touch()
    seen: list[tuple[Path, ...]] = []
    look = FolderCheck(Chosen(runs=(), everything=True, config_dir=tmp_path), (a,), seen.append)
    assert look.turn(0.0)
    assert seen == []
    b.touch()
    look.turn(0.0)
    assert seen == [(a, b)]
    b.unlink()  # as an editor does before it writes the file anew
    look.turn(0.0)
    b.touch()
    look.turn(0.0)
    assert seen == [(a, b)]
    b.unlink()
    look.turn(0.0)
    look.turn(0.0)
    assert seen == [(a, b), (a,)]


def test_a_folder_that_is_away_removes_no_run(tmp_path: Path) -> None:
    seen: list[tuple[Path, ...]] = []
    away = tmp_path / "away"
    look = FolderCheck(Chosen(runs=(), everything=True, config_dir=away), (away / "a.toml",), seen.append)
    assert look.turn(0.0)
    assert look.turn(0.0)
    assert seen == []
