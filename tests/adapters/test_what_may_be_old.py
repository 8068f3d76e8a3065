"""What a look found is acted on while it is so: after a hang it is looked at again, and a wrong clock stops no job."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from sentinel.act.file_activity import FileSilence, FileTimes, Silence
from sentinel.act.liveness_evidence import Witnessing
from sentinel.act.observation import Observation
from sentinel.act.observe import Observer
from sentinel.adapters.checkpoints import SaveFolder
from sentinel.adapters.local import LocalJobs
from sentinel.daemon import wiring
from sentinel.judge.history import History
from sentinel.plan import turn
from sentinel.plan.observation import JobsSeen, Life, ProcessState, WriterSeen
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, encode
from tests.support.diverged_runs import diverged_run, watched


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


def test_a_running_job_is_timed_from_when_it_was_first_seen(tmp_path: Path) -> None:
    now_s = [1000.0]
    witnessing = Witnessing(tmp_path, SaveFolder(tmp_path), clock=lambda: now_s[0])
    one, queued = JobsSeen(writers=(WriterSeen(id="job 1"),)), JobsSeen(writers=(WriterSeen(id="job 2", pending=True),))
    assert witnessing.job_seen_unix_s(queued, 50.0) is None
    assert witnessing.job_seen_unix_s(one, 60.0) == 60.0
    now_s[0] = 1030.0
    assert witnessing.job_seen_unix_s(JobsSeen(known=False), 90.0) is None
    assert witnessing.job_seen_unix_s(one, 90.0) == 60.0
    both = JobsSeen(writers=(WriterSeen(id="job 1"), WriterSeen(id="job 3")))
    assert [witnessing.job_seen_unix_s(jobs, 90.0) for jobs in (both, one)] == [90.0, 90.0]
    now_s[0] = 1040.0
    assert witnessing.job_seen_unix_s(one, 100.0) == 90.0  # one of two has ended
    assert witnessing.job_seen_unix_s(JobsSeen(writers=(WriterSeen(id="job 2"),)), 90.0) == 90.0


def test_an_attempt_of_a_log_is_not_alive_by_the_job_that_came_after_it(tmp_path: Path) -> None:
    """It names no job: the one that lives is a writer already, and may be the restart's."""
    history = History()
    for attempt in (1, 2):
        history.push(RunStarted(attempt=attempt, time_unix_s=float(attempt)))
        history.push(sample(1, attempt=attempt))
    lives = {None: ProcessState(life=Life.ALIVE, sentence="job 2 runs")}
    witnessing = Witnessing(tmp_path, SaveFolder(tmp_path))
    seen = witnessing.attempts(history, JobsSeen(writers=(WriterSeen(id="job 2", rollback="r"),), process_states=lives))
    assert [attempt.process_state for attempt in seen] == [None, None]
    unseen = witnessing.attempts(history, JobsSeen(process_states=lives))
    assert {attempt.process_state for attempt in unseen} == set(lives.values())


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


def test_files_are_silent_by_their_filesystems_clock_and_then_by_the_monotonic_one(tmp_path: Path) -> None:
    now_s, there_unix_s, one, two = [0.0], [5000.0], tmp_path / "1", tmp_path / "2"
    silence = FileSilence(lambda: there_unix_s[0], lambda: now_s[0])
    assert silence.lasts_s([one]) is None
    one.touch()
    os.utime(one, (4900.0, 4900.0))
    assert silence.lasts_s([one]) == 100.0
    now_s[0], there_unix_s[0] = 30.0, 90000.0  # a clock that is set does not move what is known
    assert silence.lasts_s([one]) == 130.0
    two.touch()
    os.utime(two, (4950.0, 4950.0))
    assert silence.lasts_s([one, two]) == 30.0  # it came since the last look but one, whatever its time says
    now_s[0] = 40.0
    assert silence.lasts_s([one, two]) == 40.0


@pytest.mark.parametrize("off_s", [-10800.0, 10800.0])
def test_the_filesystems_clock_is_read_off_a_file_made_there(tmp_path: Path, off_s: float) -> None:
    files_seen = FileTimes(tmp_path, tmp_path / "none", now=lambda: time.time() + off_s)
    assert abs(files_seen.now_there_unix_s() - time.time()) < 5.0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("off_s", [-10800.0, 10800.0])
def test_a_clock_that_is_hours_off_calls_no_job_stalled_that_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float
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
        ours, look, found = watched(config, tmp_path), Observer.look, list[Observation]()

        def hours_off(observer: Observer, now_unix_s: float, *, fresh: bool = False) -> Observation:
            found.append(look(observer, now_unix_s + off_s, fresh=fresh))
            return found[-1]

        monkeypatch.setattr(Observer, "look", hours_off)
        for step in range(100, 103):
            with journal.open("a") as file:
                file.write(encode(sample(step)) + "\n")
            assert ours.turn(0.0)
        assert "stalled" not in [one.verdict.kind for one in found]
        assert len(jobs.writers()) == 1
        log = tmp_path / "s" / "incidents.jsonl"
        assert not log.exists() or not {'"stop_job"', '"stalled"'} & set(log.read_text().split())
        for path in (journal, tmp_path / "s" / "job.log", *(tmp_path / "c").rglob("*")):
            os.utime(path, (time.time() - 601.0, time.time() - 601.0))
        assert Observer(wiring.neighbours_of(config), config.judge).look(time.time()).verdict.kind == "stalled"
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
    assert not told("alert_firing")
    goes_on(1, 6)
    assert ours.turn(0.0)
    goes_on(1, 11)
    assert ours.turn(0.0)
    (page,) = told("alert_firing")
    assert '"severity": "critical"' in page
    with (attempts / "0001.jsonl").open("a") as journal:
        end = RunFinished(attempt=1, global_step=15, time_unix_s=time.time(), reason="sigterm")
        journal.write(encode(end) + "\n")
    assert ours.turn(0.0)
    assert len(told("alert_resolved")) == 1
    ours.leave(1.0)
