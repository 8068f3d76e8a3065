"""What a look found is acted on while it is so: after a hang it is looked at again, and a wrong clock stops no job."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sentinel.act.observe import Observer
from sentinel.act.overlap import Silence
from sentinel.adapters.local import LocalJobs
from sentinel.judge.history import History
from sentinel.plan import turn
from sentinel.plan.look import Look
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode
from tests.adapters.test_one_sentinel_acts import diverged_run, watched


def sample(step: int, attempt: int = 1) -> Sample:
    return Sample(attempt=attempt, global_step=step, time_unix_s=time.time(), loss=3.0)


def test_silence_is_counted_from_what_came_last_whatever_its_time_says() -> None:
    now_s, history = [0.0], History()
    silence = Silence(lambda: now_s[0])
    assert silence.lasts_s(history) == 0.0
    now_s[0] = 50.0
    assert silence.lasts_s(history) == 50.0
    history.push(sample(1))
    assert silence.lasts_s(history) == 0.0
    now_s[0] = 60.0
    assert silence.lasts_s(history) == 10.0
    history.push(sample(1, attempt=2))
    assert silence.lasts_s(history) == 0.0


def test_after_a_look_that_hung_nothing_is_done_before_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = diverged_run(tmp_path)
    journal, log = tmp_path / "s" / "attempts" / "0001.jsonl", tmp_path / "s" / "incidents.jsonl"
    whole = journal.read_text()
    journal.write_text("".join(whole.splitlines(keepends=True)[:200]))
    ours = watched(config, tmp_path)
    assert ours.turn(0.0)
    journal.write_text(whole)
    monkeypatch.setattr(turn, "OLD_AFTER_S", -1.0)  # every look is one that took too long
    assert ours.turn(0.0)
    assert not log.exists() or '"opened"' not in log.read_text()
    assert ours.turn(0.0)  # not for good: a filesystem may be as slow as that always
    assert '"opened"' in log.read_text()
    ours.leave(1.0)


def test_a_job_is_not_stopped_for_a_clock_that_was_set_an_hour_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = diverged_run(tmp_path, "restart_on_hang = true", "[judge]", "stalled_after_s = 600.0")
    journal = tmp_path / "s" / "attempts" / "0001.jsonl"
    journal.write_text("".join(encode(sample(step)) + "\n" for step in range(1, 100)))
    jobs = LocalJobs(tmp_path / "s")
    jobs.start(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        cwd=tmp_path,
        extra_env={},
        log_path=tmp_path / "s" / "job.log",
    )
    try:
        ours, look, found = watched(config, tmp_path), Observer.look, list[Look]()

        def an_hour_ahead(observer: Observer, now_unix_s: float) -> Look:
            found.append(look(observer, now_unix_s + 3600.0))
            return found[-1]

        monkeypatch.setattr(Observer, "look", an_hour_ahead)
        for step in range(100, 103):
            with journal.open("a") as file:
                file.write(encode(sample(step)) + "\n")
            assert ours.turn(0.0)
        assert [one.verdict.kind for one in found] == ["stalled"] * 3  # which is said, and paged
        assert len(jobs.writers()) == 1
        assert '"stop_job"' not in (tmp_path / "s" / "incidents.jsonl").read_text()
        ours.leave(1.0)
    finally:
        jobs.stop(grace_s=1)


def test_two_attempts_that_train_at_once_page_a_person_until_one_is_gone(tmp_path: Path) -> None:
    config = diverged_run(tmp_path)
    attempts, log = tmp_path / "s" / "attempts", tmp_path / "s" / "incidents.jsonl"
    (attempts / "0001.jsonl").write_text("")

    def goes_on(attempt: int, first: int) -> None:
        with (attempts / f"{attempt:04d}.jsonl").open("a") as journal:
            journal.writelines(encode(sample(first + n, attempt)) + "\n" for n in range(5))

    def told(event: str) -> list[str]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if f'"event": "{event}"' in line and '"topic": "overlap"' in line]

    goes_on(1, 1)
    ours = watched(config, tmp_path)
    assert ours.turn(0.0)
    started = RunStarted(attempt=2, time_unix_s=time.time(), host="n1", pid=7)
    (attempts / "0002.jsonl").write_text(encode(started) + "\n")
    goes_on(2, 1)
    assert ours.turn(0.0)
    assert not told("troubled")
    goes_on(1, 6)
    assert ours.turn(0.0)
    goes_on(1, 11)
    assert ours.turn(0.0)
    (page,) = told("troubled")
    assert '"severity": "critical"' in page
    with (attempts / "0001.jsonl").open("a") as journal:
        end = RunFinished(attempt=1, global_step=15, time_unix_s=time.time(), reason="sigterm")
        journal.write(encode(end) + "\n")
    assert ours.turn(0.0)
    assert len(told("relieved")) == 1
    ours.leave(1.0)
