"""Two sentinels never act on one run: who has lost the lock while something hung does nothing more."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.act.observation import Observation
from sentinel.act.observe import Observer
from sentinel.act.perform import Performer
from sentinel.adapters.lock import RunLock
from sentinel.daemon import wiring
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident.log_outcomes import Closed
from sentinel.plan.restart.actions import Action
from sentinel.vocabulary.errors import LockHeld
from sentinel.vocabulary.numbers import dump_json
from tests.support.diverged_runs import diverged_run, watched
from tests.support.moves import MOVES


def taken_over(state_dir: Path) -> None:
    """By a sentinel of another host."""
    (state_dir / "lock").write_text(dump_json({"host": "elsewhere", "pid": 1, "token": "other"}))


@pytest.mark.parametrize("action", MOVES, ids=lambda a: type(a).__name__)
def test_nothing_moves_for_who_lost_the_lock_while_the_fence_was_asked_for(tmp_path: Path, action: Action) -> None:
    near = wiring.neighbours_of(diverged_run(tmp_path))
    with RunLock(near.state_dir) as lock:
        taken_over(near.state_dir)
        before = {str(p): p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
        with pytest.raises(LockHeld, match="elsewhere"):
            Performer(near, Observer(near, Thresholds()), lock.renew)(action)
    assert {str(p): p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_a_turn_that_comes_back_from_a_filesystem_that_hung_does_nothing_where_the_lock_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, look = diverged_run(tmp_path), Observer.look
    ours = watched(config, tmp_path)

    def hung(observer: Observer, now_unix_s: float, *, fresh: bool = False) -> Observation:
        found = look(observer, now_unix_s, fresh=fresh)
        taken_over(tmp_path / "s")
        return found

    monkeypatch.setattr(Observer, "look", hung)
    assert not ours.turn(0.0)
    assert ours.held  # the daemon waits for its lock again
    assert ours.code is None
    assert not (tmp_path / "s" / "incidents.jsonl").exists()
    assert "elsewhere" in (tmp_path / "s" / "lock").read_text()
    monkeypatch.setattr(Observer, "look", look)
    (tmp_path / "s" / "lock").unlink()
    again = watched(config, tmp_path)
    assert again.turn(0.0)
    assert '"event": "opened"' in (tmp_path / "s" / "incidents.jsonl").read_text()
    again.leave(1.0)


def test_a_line_of_the_incident_log_is_written_by_who_has_the_lock(tmp_path: Path) -> None:
    config = diverged_run(tmp_path)
    with RunLock(tmp_path / "s") as lock:
        parts = wiring.assemble(config, config.policy, say=lambda _: None, own=lock.renew)
        parts.ledger.record(Closed(incident="incident-1", outcome="undone", reason="…"))
        taken_over(tmp_path / "s")
        with pytest.raises(LockHeld, match="elsewhere"):
            parts.ledger.record(Closed(incident="incident-1", outcome="undone", reason="…"))
    assert len((tmp_path / "s" / "incidents.jsonl").read_text().splitlines()) == 1
