"""One run as the loop sees it: what is read again while a turn is under way, and what can't be had for a while."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.daemon import wiring
from sentinel.daemon.watched_run import Watched
from sentinel.vocabulary.errors import FilesystemUnavailable
from tests.support.diverged_runs import diverged_run, watched


def test_a_configuration_that_was_changed_and_changed_back_before_the_next_turn_is_as_it_was(tmp_path: Path) -> None:
    config = diverged_run(tmp_path)
    ours = watched(config, tmp_path)
    assert ours.turn(0.0)
    ours.reload(replace(config, watch=replace(config.watch, poll_interval_s=7.0)))
    ours.reload(config)
    assert ours.turn(0.0)
    assert ours.config == config
    ours.leave(1.0)


def test_a_run_that_could_not_be_put_together_again_for_a_while_has_its_own_pace_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = diverged_run(tmp_path, "[watch]", "poll_interval_s = 0.5")
    ours = watched(config, tmp_path)
    assert ours.turn(0.0)
    assemble = wiring.assemble

    def away(*_: object, **__: object) -> wiring.Parts:
        raise FilesystemUnavailable("its server is away")

    monkeypatch.setattr(wiring, "assemble", away)
    ours.reload(replace(config, watch=replace(config.watch, poll_interval_s=0.25)))
    assert ours.turn(0.0)
    assert ours.pace_s == 10.0
    monkeypatch.setattr(wiring, "assemble", assemble)
    assert ours.turn(0.0)
    assert ours.pace_s == 0.25
    ours.leave(1.0)


def test_one_whose_end_was_broken_off_is_not_taken_up_again_and_frees_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = watched(diverged_run(tmp_path), tmp_path)
    assert ours.turn(0.0)
    (tmp_path / "s" / "incidents.jsonl").write_text("no event\n{}\n")

    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("an unexpected error")

    monkeypatch.setattr(Watched, "_release", breaks)
    with pytest.raises(RuntimeError, match="an unexpected error"):
        ours.turn(0.0)
    assert (tmp_path / "s" / "lock").exists()
    assert not ours.turn(0.0)
    assert not (tmp_path / "s" / "lock").exists()
    assert ours.code == 4
