"""The loop on trainers that are a few lines of a journal: what is proved, what passes, and what is taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.journal import Journals
from sentinel.jobscript.facts import ScriptFacts
from sentinel.judge.history import Attempt
from sentinel.lab.probes.at_work import ProbeJob
from sentinel.lab.probes.probe import Probe
from sentinel.lab.tune.search import Decision, Pacing
from sentinel.lab.tune.task import SETTING, Task, What, task_of
from sentinel.lab.tune.tuner import Tuner
from sentinel.plan.choose.policy import Tuning
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.vocabulary.errors import ConfigError, PermanentError, SlurmUnavailable
from sentinel.vocabulary.overrides import decode_overrides
from sentinel.vocabulary.sample import Record as Line
from sentinel.vocabulary.sample import RunStarted, Sample, Validation, encode
from tests.support.there import there

TUNING = Tuning(starts=(8, 16), durations=(20, 40, 80), validate_every=5)
FACTS = ScriptFacts(seq_length=64, lr_warmup_iters=10, train_iters=400, global_batch_size=4)
TASK = task_of(TUNING, FACTS)
LONGEST_CALM = 20


class Trainers:
    """Launchers of trainers that write their whole journal when they are started, and live until they are stopped."""

    def __init__(self) -> None:
        self.alive: set[Path] = set()
        self.started: list[str] = []
        self.away = False
        self.says: dict[str, Any] = {}
        self.fails = 0  # so many trainers end at once
        self.silent = False

    def job(self, _: Probe, folder: Path) -> ProbeJob:
        return ProbeJob(folder, _Launcher(self, folder), Journals(folder))


class _Launcher:
    def __init__(self, trainers: Trainers, folder: Path) -> None:
        self._trainers = trainers
        self._folder = folder

    def look(self, _: Sequence[RunStarted]) -> JobsSeen:
        return JobsSeen(writers=(WriterSeen(id="1", rollback=None),) if self._folder in self._trainers.alive else ())

    def stop(self, *_: object) -> None:
        self._trainers.alive.discard(self._folder)

    def start(self, *_: object, **__: object) -> None:
        if self._trainers.away:
            raise SlurmUnavailable("sbatch", "it is away")
        self._trainers.started.append(self._folder.name)
        if self._trainers.fails:
            self._trainers.fails -= 1
            return
        self._trainers.alive.add(self._folder)
        if self._trainers.silent:
            return
        schedule = there(decode_overrides((self._folder / "overrides.json").read_text()).standing.seqlen)
        lines: list[Line] = [
            RunStarted(attempt=1, time_unix_s=0.0, **{"seqlen_schedule": schedule.to_json(), **self._trainers.says})
        ]
        for step in range(5, 31, 5):
            loss = 9.0 if schedule.total_steps > LONGEST_CALM and step == 25 else 3.0
            lines.append(Sample(attempt=1, global_step=step, time_unix_s=0.0, loss=loss, consumed_tokens=step))
            lines.append(Validation(attempt=1, global_step=step, time_unix_s=0.0, loss=loss))
        (self._folder / "attempts").mkdir()
        (self._folder / "attempts" / "0001.jsonl").write_text("".join(encode(line) + "\n" for line in lines))

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a probe has no use for {name}")


def made(root: Path, trainers: Trainers, said: list[str] | None = None, task: Task = TASK) -> Tuner:
    return Tuner(task, root, root / "run", task.probe, trainers.job, (said if said is not None else []).append)


def tuned(root: Path, trainers: Trainers, said: list[str] | None = None) -> Decision:
    return made(root, trainers, said).run(poll_interval_s=0.0, sleep=lambda _: None)


def lives(root: Path) -> list[tuple[str, str | None]]:
    return [(life.name, life.result and life.result.outcome) for life in made(root, Trainers()).lives]


def test_the_loop_does_what_the_search_asks_for_and_records_it(tmp_path: Path) -> None:
    trainers = Trainers()
    assert tuned(tmp_path, trainers).chosen == Pacing(8, 20)
    assert lives(tmp_path) == [("start8-T40", "diverged"), ("start8-T20", "calm")]
    assert trainers.alive == set()


def test_a_pacing_that_did_not_take_effect_stops_the_search(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.says = {"seqlen_schedule": TASK.schedule(Pacing(8, 999))}
    with pytest.raises(PermanentError, match=r"start 8, T 40 runs with another sequence length, .* instead of"):
        tuned(tmp_path, trainers)


@pytest.mark.parametrize("what", ["voc", "random-ltd"])
def test_what_a_probe_reports_is_compared_with_the_schedule_that_is_tuned(tmp_path: Path, what: What) -> None:
    task = task_of(replace(TUNING, voc_index="voc"), FACTS, what)
    pacing, tuner = Pacing(8, 40), made(tmp_path, Trainers(), task=task)
    reported_as = {"voc": "curriculum_schedule", "random-ltd": "random_ltd_schedule"}[what]
    started = RunStarted(attempt=1, time_unix_s=0.0)
    tuner.prove(pacing, Attempt(1, replace(started, **{reported_as: task.schedule(pacing)})))
    assert getattr(task.overrides(pacing).standing, SETTING[what]).to_json() == task.schedule(pacing)
    with pytest.raises(PermanentError, match=r"start 8, T 40 runs with another .* instead of"):
        tuner.prove(pacing, Attempt(1, replace(started, **{reported_as: task.schedule(Pacing(8, 999))})))


def test_a_probe_that_resumed_from_somebodys_checkpoint_stops_the_search(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.says = {"resumed_from": 3000}
    with pytest.raises(PermanentError, match="resumed from step 3000 instead of beginning from scratch"):
        tuned(tmp_path, trainers)


def test_what_may_pass_leaves_a_search_that_is_taken_up_again(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.away = True
    with pytest.raises(SlurmUnavailable):
        tuned(tmp_path, trainers)
    assert lives(tmp_path) == [("start8-T40", None)]
    trainers.away = False
    assert tuned(tmp_path, trainers).chosen == Pacing(8, 20)
    assert trainers.started == ["start8-T40-life2", "start8-T20"]


def test_a_probe_that_was_left_running_is_followed_on_and_not_begun_anew(tmp_path: Path) -> None:
    trainers = Trainers()
    probe = TASK.probe(Pacing(8, 40))
    life = made(tmp_path, trainers)._probes.record.begin(probe, now=0.0)
    trainers.job(probe, tmp_path / life.name).begin(probe, tmp_path / "checkpoints")
    said: list[str] = []
    tuned(tmp_path, trainers, said)
    assert trainers.started == ["start8-T40", "start8-T20"]
    assert "started before" in said[0]


def test_an_event_torn_by_a_crash_is_as_if_it_had_not_been_written(tmp_path: Path) -> None:
    trainers = Trainers()
    tuned(tmp_path, trainers)
    path = tmp_path / "probes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert lives(tmp_path)[-1] == ("start8-T20", None)
    assert tuned(tmp_path, trainers).chosen == Pacing(8, 20)
    assert trainers.started == ["start8-T40", "start8-T20"], "its journal holds the answer already"


def test_another_search_in_the_same_folder_is_not_mixed_with_the_first(tmp_path: Path) -> None:
    made(tmp_path, Trainers())
    with pytest.raises(ConfigError, match="another search"):
        made(tmp_path, Trainers(), task=replace(TASK, fluctuation=1.5))


def test_a_trainer_that_fails_is_started_once_more_and_then_a_person_is_needed(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.fails = 1
    assert tuned(tmp_path, trainers).chosen == Pacing(8, 20)
    assert trainers.started == ["start8-T40", "start8-T40-life2", "start8-T20"]
    trainers.fails = 2
    with pytest.raises(PermanentError, match=r"start 8, T 40 has ended twice by itself; see .*-life2/job.log"):
        tuned(tmp_path / "again", trainers)


def test_a_probe_that_was_not_needed_is_begun_anew_where_it_is_wanted_after_all(tmp_path: Path) -> None:
    trainers, said = Trainers(), list[str]()
    tuner = made(tmp_path, trainers, said)
    ahead = TASK.probe(Pacing(16, 40))
    trainers.silent = True
    tuner._probes.turn([ahead])
    tuner._probes.turn([])
    assert "it is not needed any more" in said[-1]
    trainers.silent = False
    tuner._probes.turn([ahead])
    assert trainers.started == ["start16-T40", "start16-T40-life2"]
