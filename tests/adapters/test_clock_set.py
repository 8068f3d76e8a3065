"""The wall clock is set while a watch runs: ages and waits go on as if it were not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sentinel.act.file_activity import FileSilence, FileTimes
from sentinel.act.observe import Observer
from sentinel.act.perform import Ledger
from sentinel.act.wall_clock import EventTimes, WallClock
from sentinel.act.watch import Watch
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import AlertFiring
from sentinel.vocabulary.errors import TemporaryError

DAY_S = 86400.0
SET_BY = pytest.mark.parametrize("set_by_s", [3600.0, -3600.0, DAY_S, -DAY_S, 3650 * DAY_S, -3650 * DAY_S])


class Clocks:
    """A wall clock that is set, and a monotonic one."""

    def __init__(self, now_unix_s: float) -> None:
        self.unix_s, self.monotonic_s = now_unix_s, 100.0

    def now(self) -> float:
        return self.unix_s

    def monotonic(self) -> float:
        return self.monotonic_s

    def passes(self, seconds: float, set_by_s: float = 0.0) -> None:
        self.monotonic_s += seconds
        self.unix_s += seconds + set_by_s


def event(time_unix_s: float) -> IncidentEvent:
    return AlertFiring(incident=None, topic="down", reason="", time_unix_s=time_unix_s, since_unix_s=time_unix_s)


@SET_BY
def test_a_journal_that_was_written_a_moment_ago_is_as_old_after_the_clock_was_set(
    tmp_path: Path, set_by_s: float
) -> None:
    """The filesystem's clock was asked before; the trainer's next sample has not come yet."""
    journal = tmp_path / "attempts" / "0001.jsonl"
    journal.parent.mkdir()
    journal.touch()
    clocks = Clocks(journal.stat().st_mtime)
    files_seen = FileTimes(tmp_path, tmp_path, now=clocks.now, clock=clocks.monotonic)
    silence = FileSilence(files_seen.now_there_unix_s, clocks.monotonic)
    files_seen.now_there_unix_s()
    clocks.passes(5.0, set_by_s)
    (file_seen,) = files_seen.of_journals([1], sure_s=15.0)
    assert file_seen.age_s == pytest.approx(5.0, abs=1.0)
    assert silence.lasts_s([journal]) == pytest.approx(5.0, abs=1.0)
    clocks.passes(20.0)
    assert files_seen.of_journals([1], sure_s=15.0)[0].age_s == pytest.approx(25.0, abs=1.0)


@SET_BY
@pytest.mark.parametrize("seen_before", [True, False])
def test_a_start_is_as_long_ago_as_it_was(set_by_s: float, seen_before: bool) -> None:
    clocks = Clocks(1e9)
    times = EventTimes(WallClock(clocks.now, clocks.monotonic))
    log = [event(1e9 - 50.0)]
    assert times.of(log, 1e9) == (tuple(log), 1e9)
    log.append(event(clocks.unix_s))
    if seen_before:
        times.of(log, clocks.unix_s)
    clocks.passes(7.0, set_by_s)
    log.append(event(clocks.unix_s - 2.0))
    found, now_unix_s = times.of(log, clocks.unix_s - set_by_s)  # taken just before the clock was set
    assert now_unix_s == clocks.unix_s
    assert [now_unix_s - e.time_unix_s for e in found] == [57.0, 7.0, 2.0]
    assert now_unix_s - found[1].since_unix_s == 7.0
    clocks.passes(3.0)
    found, now_unix_s = times.of(log, clocks.unix_s)
    assert [now_unix_s - e.time_unix_s for e in found] == [60.0, 10.0, 5.0]


def test_what_the_log_dates_in_the_future_counts_from_when_it_was_seen_first() -> None:
    """A watch that is started again after the clock was set back: a wait has its length, and no more."""
    clocks = Clocks(1e9)
    times = EventTimes(WallClock(clocks.now, clocks.monotonic))
    log = [event(1e9 + 3650 * DAY_S), event(1e9 - 5.0)]
    clocks.passes(8.0)
    found, now_unix_s = times.of(log, clocks.unix_s)
    clocks.passes(30.0)
    again, later_unix_s = times.of(log, clocks.unix_s)
    assert [now_unix_s - e.time_unix_s for e in found] == [0.0, 13.0]
    assert [later_unix_s - e.time_unix_s for e in again] == [30.0, 43.0]


def test_a_clock_that_drifts_is_not_taken_for_one_that_was_set() -> None:
    clocks = Clocks(1e9)
    times, log = EventTimes(WallClock(clocks.now, clocks.monotonic)), [event(1e9)]
    for _ in range(100):
        clocks.passes(10.0, set_by_s=1.0)
        assert times.of(log, clocks.unix_s) == (tuple(log), clocks.unix_s)


@SET_BY
def test_a_failure_that_lasts_is_told_in_time_although_the_clock_is_set(tmp_path: Path, set_by_s: float) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TemporaryError("the disk is away")

    told: list[dict[str, Any]] = []
    clocks = Clocks(1e9)
    near = SimpleNamespace(checkpoints=None, state_dir=tmp_path)
    watch = Watch(
        cast("Any", near),
        cast("Observer", SimpleNamespace(look=fails, fence=SimpleNamespace(not_parked=fails))),
        cast("Any", None),
        Policy(confirm_within_s=60.0),
        Ledger(lambda e: told.append(e.to_json()), clocks.now, lambda _: None),
    )
    watch._wall = WallClock(clocks.now, clocks.monotonic)
    watch.tick(clocks.unix_s)
    clocks.passes(30.0, set_by_s)
    watch.tick(clocks.unix_s)
    assert told == []
    clocks.passes(31.0)
    watch.tick(clocks.unix_s)
    (page,) = told
    assert (page["event"], page["topic"]) == ("alert_firing", "watch_failing")
    assert clocks.unix_s - page["since_unix_s"] == 61.0


def test_a_lock_of_another_machine_that_is_being_taken_is_left_though_the_clock_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sentinel.adapters import lock

    other = tmp_path / ".lock.0123"
    other.write_text('{"machine": "another", "pid": 1, "start": 1}')
    wall_s = other.stat().st_mtime + DAY_S
    monkeypatch.setattr(lock.time, "time", lambda: wall_s)
    with lock.RunLock(tmp_path):
        assert other.exists()
