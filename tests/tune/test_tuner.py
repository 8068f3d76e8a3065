"""The loop on trainers that are a few lines of a journal: what is proved, what passes, and what is taken up again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.jobscript.facts import Facts
from sentinel.plan.observation import JobsSeen, WriterSeen
from sentinel.plan.policy import Tuning
from sentinel.tune.record import Life, Record
from sentinel.tune.search import Pacing
from sentinel.tune.task import SETTING, What, task_of
from sentinel.tune.tuner import Probe, Tuner
from sentinel.vocabulary.errors import ConfigError, PermanentError, SlurmUnavailable
from sentinel.vocabulary.overrides import decode_overrides
from sentinel.vocabulary.sample import Record as Line
from sentinel.vocabulary.sample import RunStarted, Sample, Validation, encode

TUNING = Tuning(starts=(8, 16), durations=(20, 40, 80), validate_every=5)
FACTS = Facts(seq_length=64, lr_warmup_iters=10, train_iters=400, global_batch_size=4)
TASK = task_of(TUNING, FACTS)
LONGEST_CALM = 20


class Trainers:
    """Launchers of trainers that write their whole journal when they are started, and live until they are stopped."""

    def __init__(self) -> None:
        self.alive: set[Path] = set()
        self.started: list[str] = []
        self.away = False
        self.says: dict[str, Any] = {}

    def probe(self, root: Path, life: Life) -> Probe:
        folder = root / life.name
        return Probe(folder, _Launcher(self, folder), Journals(folder), life, TASK)


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
        self._trainers.alive.add(self._folder)
        self._trainers.started.append(self._folder.name)
        schedule = decode_overrides((self._folder / "overrides.json").read_text()).standing.seqlen
        assert schedule is not None
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


def tuner(root: Path, trainers: Trainers, said: list[str] | None = None) -> Tuner:
    record = Record(IncidentLog(root / "probes.jsonl", check=dict), TASK)
    say = (said if said is not None else []).append
    probe_of = lambda life: trainers.probe(root, life)  # noqa: E731
    return Tuner(TASK, record, probe_of, parallel=1, poll_interval_s=0.0, say=say, sleep=lambda _: None)


def lives(root: Path) -> list[tuple[str, str | None]]:
    return [(life.name, life.why) for life in Record(IncidentLog(root / "probes.jsonl", check=dict), TASK).lives]


def test_the_loop_does_what_the_search_asks_for_and_records_it(tmp_path: Path) -> None:
    trainers = Trainers()
    assert tuner(tmp_path, trainers).run().chosen == Pacing(8, 20)
    assert lives(tmp_path) == [("start8-T40", "fluctuates"), ("start8-T20", "calm")]
    assert trainers.alive == set()


def test_a_pacing_that_did_not_take_effect_stops_the_search(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.says = {"seqlen_schedule": TASK.schedule(Pacing(8, 999))}
    with pytest.raises(PermanentError, match=r"start 8, T 40 runs with another sequence length, .* instead of"):
        tuner(tmp_path, trainers).run()


@pytest.mark.parametrize("what", ["voc", "random-ltd"])
def test_what_a_probe_reports_is_compared_with_the_schedule_that_is_tuned(tmp_path: Path, what: What) -> None:
    task = task_of(replace(TUNING, voc_index="voc"), FACTS, what)
    life = Life(pacing=Pacing(8, 40), number=1, began_unix_s=0.0)
    probe = Probe(tmp_path, _Launcher(Trainers(), tmp_path), Journals(tmp_path), life, task)
    reported_as = {"voc": "curriculum_schedule", "random-ltd": "random_ltd_schedule"}[what]
    started = RunStarted(attempt=1, time_unix_s=0.0)
    probe.take([replace(started, **{reported_as: task.schedule(life.pacing)})])
    assert getattr(task.overrides(life.pacing).standing, SETTING[what]).to_json() == task.schedule(life.pacing)
    with pytest.raises(PermanentError, match=r"start 8, T 40 runs with another .* instead of"):
        probe.take([replace(started, **{reported_as: task.schedule(Pacing(8, 999))})])


def test_a_probe_that_resumed_from_somebodys_checkpoint_stops_the_search(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.says = {"resumed_from": 3000}
    with pytest.raises(PermanentError, match="resumed from step 3000 instead of beginning from scratch"):
        tuner(tmp_path, trainers).run()


def test_what_may_pass_leaves_a_search_that_is_taken_up_again(tmp_path: Path) -> None:
    trainers = Trainers()
    trainers.away = True
    with pytest.raises(SlurmUnavailable):
        tuner(tmp_path, trainers).run()
    assert lives(tmp_path) == [("start8-T40", None)]
    trainers.away = False
    assert tuner(tmp_path, trainers).run().chosen == Pacing(8, 20)
    assert trainers.started == ["start8-T40-life2", "start8-T20"]


def test_a_probe_that_was_left_running_is_followed_on_and_not_begun_anew(tmp_path: Path) -> None:
    trainers = Trainers()
    record = Record(IncidentLog(tmp_path / "probes.jsonl", check=dict), TASK)
    trainers.probe(tmp_path, record.begin(Pacing(8, 40), now=0.0)).start()
    said: list[str] = []
    tuner(tmp_path, trainers, said).run()
    assert trainers.started == ["start8-T40", "start8-T20"]
    assert "started before" in said[0]


def test_an_event_torn_by_a_crash_is_as_if_it_had_not_been_written(tmp_path: Path) -> None:
    trainers = Trainers()
    tuner(tmp_path, trainers).run()
    path = tmp_path / "probes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert lives(tmp_path)[-1] == ("start8-T20", None)
    assert tuner(tmp_path, trainers).run().chosen == Pacing(8, 20)
    assert trainers.started == ["start8-T40", "start8-T20"], "its journal holds the answer already"


def test_another_search_in_the_same_folder_is_not_mixed_with_the_first(tmp_path: Path) -> None:
    Record(IncidentLog(tmp_path / "probes.jsonl", check=dict), TASK)
    with pytest.raises(ConfigError, match="another search"):
        Record(IncidentLog(tmp_path / "probes.jsonl", check=dict), replace(TASK, fluctuation=1.5))
