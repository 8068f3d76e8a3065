"""Two attempts that train at the same time, told apart from one that came after the other."""

from __future__ import annotations

import pytest

from sentinel.act.overlap import Overlap
from sentinel.judge.history import History
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.support.there import there


class Run:
    """A run whose attempts say what the test lets them, and the looks at it."""

    def __init__(self) -> None:
        self.history = History(again=lambda *_: ())
        self.now_s = 0.0
        self._overlap = Overlap(lambda: self.now_s)

    def begins(self, attempt: int, *, at: float, job: str | None = "7_1") -> None:
        self.history.push(RunStarted(attempt=attempt, time_unix_s=at, job_id=job, host="n1", pid=40 + attempt))

    def steps(self, attempt: int, count: int, *, at: float) -> None:
        for _ in range(count):
            known = self.history.attempts[attempt]
            self.history.push(Sample(attempt=attempt, global_step=known.made + 1, time_unix_s=at, loss=3.0))

    def ends(self, attempt: int, *, at: float) -> None:
        made = self.history.attempts[attempt].made
        self.history.push(RunFinished(attempt=attempt, global_step=made, time_unix_s=at, reason="sigterm"))

    def look(self) -> str | None:
        return self._overlap.sentence(self.history)


@pytest.fixture
def run() -> Run:
    """Attempt 1 has made 10 steps, and attempt 2 has begun; both are known."""
    run = Run()
    run.begins(1, at=0.0)
    run.steps(1, 10, at=90.0)
    assert run.look() is None
    run.begins(2, at=100.0, job="7_2")
    run.steps(2, 5, at=110.0)
    assert run.look() is None
    return run


def test_an_attempt_that_goes_on_beside_a_newer_one_is_told_with_both_their_jobs(run: Run) -> None:
    run.steps(1, 3, at=120.0)
    told = there(run.look())
    assert told.startswith("attempts 1 (job 7_1) and 2 (job 7_2) train at the same time: attempt 1 has come to step 13")
    run.begins(3, at=130.0, job=None)
    assert run.look() is None  # of the three, nobody has been heard since
    run.steps(2, 3, at=140.0)
    assert "attempts 2 (job 7_2) and 3 (process 43 on n1)" in (run.look() or "")


def test_it_is_over_with_the_older_ones_end_or_its_silence(run: Run) -> None:
    run.steps(1, 5, at=120.0)
    run.now_s = 10.0
    assert run.look() is not None
    run.now_s = 609.0
    assert run.look() is not None
    run.now_s = 610.0
    assert run.look() is None
    run.steps(1, 1, at=700.0)
    assert run.look() is not None
    run.ends(1, at=701.0)
    assert run.look() is None


def test_what_an_old_attempt_had_still_to_tell_is_no_overlap(run: Run) -> None:
    run.steps(1, 50, at=95.0)  # late out of a filesystem's cache, but made before
    assert run.look() is None


def test_a_clock_that_is_ahead_is_none_either() -> None:
    run = Run()
    run.begins(1, at=0.0)
    run.steps(1, 50, at=5000.0)  # by a clock an hour ahead of the other host's
    run.begins(2, at=100.0)
    assert run.look() is None
    run.steps(2, 50, at=150.0)
    assert run.look() is None


def test_a_watch_that_begins_while_both_train_finds_it() -> None:
    run = Run()
    run.begins(1, at=0.0)
    run.steps(1, 500, at=150.0)
    run.begins(2, at=100.0)
    run.steps(2, 40, at=150.0)
    assert run.look() is None  # it may be over
    run.steps(1, 3, at=160.0)
    assert run.look() is not None


def test_a_clock_that_was_set_back_does_not_hide_an_attempt_that_goes_on(run: Run) -> None:
    """Its samples carry times of before the other's start. What comes after a minute is no cache's doing."""
    run.now_s = 30.0
    run.steps(1, 5, at=50.0)
    assert run.look() is None
    run.now_s = 70.0
    run.steps(1, 2, at=60.0)
    assert run.look() is None
    run.now_s = 71.0
    run.steps(1, 1, at=60.0)
    assert "train at the same time" in (run.look() or "")
