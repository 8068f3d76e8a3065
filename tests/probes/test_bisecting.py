"""The bisect that a rung asks for, step by step, on trainers that are a few lines of a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.lock import RunLock
from sentinel.judge.history import History
from sentinel.lab.bisect.bisect import Bisect, Bisecting
from sentinel.lab.probes.probe import Limits
from sentinel.plan.observation import BisectSeen
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused
from tests.support.bisect_questions import INCIDENT, RUN, SKIP, question
from tests.support.probe_trainers import ALARM, ONSET, TAG, Trainers


@pytest.fixture
def trainers(tmp_path: Path) -> Trainers:
    (tmp_path / "run" / TAG).mkdir(parents=True)
    (tmp_path / "run" / TAG / "weights.pt").write_bytes(b"weights")
    made = Trainers()
    made.ill_from, made.until = {"control": ONSET, "skip-others": ONSET}, 2 * ALARM
    return made


def bisecting(root: Path, trainers: Trainers) -> Bisecting:
    def make(*_: Any) -> Bisect:
        return Bisect(question(), root / "probes", root / "run", trainers.job, Limits(), lambda _: None)

    return Bisecting(make)


def seen(these: Bisecting) -> BisectSeen:
    return these.seen(INCIDENT, History(), RUN)


def followed(these: Bisecting, turns: int) -> BisectSeen:
    for _ in range(turns):
        if seen(these).over:
            break
        these.follow(INCIDENT.id)
    return seen(these)


def test_it_goes_on_by_steps_also_in_another_process_and_ends_with_what_healed(
    tmp_path: Path, trainers: Trainers
) -> None:
    assert not followed(bisecting(tmp_path, trainers), 3).over
    found = followed(bisecting(tmp_path, trainers), 20)  # after a kill
    assert found.reason.startswith("samples of the data (sure)")
    assert found.overrides == question().restarts[SKIP]
    assert trainers.started == ["control", "skip-suspects", "skip-others"]
    assert not trainers.alive


def test_a_trainer_that_ignores_what_a_probe_asks_for_leaves_no_cause(tmp_path: Path, trainers: Trainers) -> None:
    trainers.ignores_overrides, trainers.ill_from["other-node"] = True, ONSET
    these = bisecting(tmp_path, trainers)
    found = followed(these, 60)
    assert (found.over, found.overrides) == (True, None)
    assert "no cause is likely" in found.reason
    results = these._of(INCIDENT, History(), RUN).probes.results
    assert results[SKIP].outcome == "not tried"
    assert "was trained on the samples of the run's step" in results[SKIP].why
    assert {n: r.outcome for n, r in results.items() if r.outcome != "not tried"} == {
        "control": "diverged",
        "other-node": "diverged",
    }, "its environment is set by sentinel itself"


def test_a_probe_whose_trainer_failed_is_not_begun_at_each_turn_anew(tmp_path: Path, trainers: Trainers) -> None:
    trainers.dies_at_once = True
    found = followed(bisecting(tmp_path, trainers), 20)
    assert trainers.started == ["control"]
    assert (found.over, found.overrides) == (True, None)
    assert "the control shows nothing" in found.reason


def test_a_persons_own_command_is_let_go_on_and_what_can_not_be_begun_ends_it(
    tmp_path: Path, trainers: Trainers
) -> None:
    these = bisecting(tmp_path, trainers)
    (tmp_path / "probes").mkdir()
    with RunLock(tmp_path / "probes"):
        assert not followed(these, 3).over
    assert trainers.started == []

    def refused(*_: Any) -> Any:
        raise ConfigError("the checkpoints would be the run's")

    trainers.job = refused  # type: ignore[method-assign]
    found = followed(bisecting(tmp_path, trainers), 3)
    assert found.over
    assert "the checkpoints would be the run's" in found.reason


def test_a_folder_that_can_not_be_read_is_not_the_end_of_a_bisect(tmp_path: Path, trainers: Trainers) -> None:
    def refused(*_: Any) -> Bisect:
        raise FilesystemRefused("/runs can't be read or changed: it is read-only")

    these, readable = bisecting(tmp_path, trainers), bisecting(tmp_path, trainers).make
    these.make = refused
    with pytest.raises(FilesystemRefused):
        seen(these)
    these.make = readable
    assert not seen(these).over
