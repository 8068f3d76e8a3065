"""What `replay --decisions` says the ladder would have done: which rung, which save, and what is said where no save is
named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sentinel.cli.commands import app
from sentinel.judge.events import Event, EventKind
from sentinel.judge.history import Attempt
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.review.backtest import WouldDo, would_do
from sentinel.vocabulary.sample import CheckpointSaved, Record, RunStarted
from tests.triage.runs import sample, write_attempt

CURVE = Path(__file__).parents[1] / "data" / "incident_curves" / "tr8b_104b_diverge_17060.csv"
DIVERGED = Event(
    kind=EventKind.DIVERGENCE, onset_range=(310, 320), verdict_step=400, recommend_rollback=True, reason="it rose"
)
RESEED = Rung(name="reseed", hypothesis="the data did it", reseed=True)
WAIT = Rung(name="wait", hypothesis="it comes back", wait_steps=50)
STARTED = RunStarted(attempt=1, time_unix_s=1.0, seed=7, world_size=8)


def saved(*steps: int, attempt: int = 1) -> list[CheckpointSaved]:
    return [CheckpointSaved(attempt=attempt, global_step=s, time_unix_s=1.0, tag=f"global_step{s}") for s in steps]


def done(lineage: Sequence[Attempt] = (), save_every: int | None = None, step_time_s: float | None = None) -> WouldDo:
    policy = Policy(ladder=(RESEED,))
    return would_do(DIVERGED, lineage, policy, save_every=save_every, step_time_s=step_time_s)


@pytest.mark.parametrize(
    ("named", "save_every", "saves", "target", "lost"),
    [
        ((100, 200, 300, 350), None, "named", 300, 100),
        ((100, 200), 50, "named", 200, 200),  # the log's own word goes before the option
        ((350, 500), 50, "named", 0, 400),  # it names saves, and none of them is early enough
        ((), 50, "assumed", 300, 100),
        ((), 1000, "assumed", 0, 400),
        ((), None, "unknown", 300, 100),  # the onset at 310 less the margin of 10
    ],
)
def test_the_target_is_a_save_of_the_log_and_an_assumed_one_only_where_it_names_none(
    named: tuple[int, ...], save_every: int | None, saves: str, target: int, lost: int
) -> None:
    found = done([Attempt(1, started=STARTED, saved=saved(*named))], save_every)
    assert found.decision is not None
    assert (found.saves, found.decision.target_step, found.decision.lost_steps) == (saves, target, lost)


@pytest.mark.parametrize(
    ("ladder", "rung", "passed"),
    [
        ((RESEED,), "reseed", ()),
        ((WAIT, RESEED), "reseed", ("'wait' would have watched until step 450",)),
        ((WAIT,), None, ("'wait' would have watched until step 450",)),
        ((Rung(name="scratch", hypothesis="h", target="scratch", reseed=True),), "scratch", ()),
        ((), None, ()),
    ],
)
def test_the_first_rung_that_changes_something_is_named_and_those_before_it_too(
    ladder: tuple[Rung, ...], rung: str | None, passed: tuple[str, ...]
) -> None:
    found = would_do(DIVERGED, (), Policy(ladder=ladder), save_every=100, step_time_s=None)
    assert (found.decision.rung if found.decision is not None else None, found.passed) == (rung, passed)
    assert found.reason


def test_a_rung_that_the_trainer_can_not_apply_is_passed_with_the_reason() -> None:
    unable = Attempt(1, started=RunStarted(attempt=1, time_unix_s=1.0, applies=()))
    found = done([unable], 100)
    assert found.decision is None
    assert found.passed[0].startswith("'reseed' could not have been carried out: ")


def test_gpu_hours_are_of_the_logs_own_step_time() -> None:
    decision = done([Attempt(1, started=STARTED)], 100, step_time_s=36.0).decision
    assert decision is not None
    assert decision.lost_gpu_hours == pytest.approx(100 * 36.0 * 8 / 3600)


def test_what_an_attempt_saved_after_its_successors_start_is_no_save_any_more() -> None:
    first = Attempt(1, started=STARTED, saved=saved(100, 200, 300))
    second = RunStarted(attempt=2, time_unix_s=2.0, seed=8, resumed_from=100, parent_attempt=1)
    decision = done([first, Attempt(2, started=second, saved=saved(150, attempt=2))]).decision
    assert decision is not None
    assert decision.target_step == 150
    assert decision.changes[0].startswith("seed 8 -> ")


def replayed(*words: str) -> Any:
    ran = CliRunner().invoke(app, ["replay", "--decisions", *words])
    assert ran.exit_code == 1, ran.output
    return json.loads(ran.stdout) if "--json" in words else ran.stdout


def test_a_public_curve_without_saves_is_told_with_what_is_known_of_it() -> None:
    told = replayed(str(CURVE))
    assert (
        "at step 17068: rung 'reseed' would have restarted from the last save at or before step 17052, with at least "
        "16 steps lost: seed unknown -> 1 for the data not yet consumed (the log names no save; --save-every STEPS "
        "assumes them)"
    ) in told
    told = replayed(str(CURVE), "--save-every", "1500")
    assert "would have restarted from step 16500, with 568 steps lost" in told
    ((one,),) = [each["would_do"] for each in replayed(str(CURVE), "--save-every", "1500", "--json")]
    assert (one["saves"], one["decision"]["target_tag"]) == ("assumed", "global_step16500")


def test_a_journals_saves_and_settings_are_those_of_the_attempt_that_diverged(tmp_path: Path) -> None:
    records: list[Record] = [STARTED]
    for step in range(1, 301):
        records.append(sample(1, step, 3.0 + max(0.0, min(3.0, (step - 200) * 0.05))))
        if step % 60 == 0:
            records += saved(step)
    write_attempt(tmp_path, 1, records)
    later = RunStarted(attempt=2, time_unix_s=2e9, seed=99, resumed_from=180, parent_attempt=1)
    write_attempt(tmp_path, 2, [later, *(sample(2, step, 3.0) for step in range(181, 301)), *saved(185, attempt=2)])
    ran = CliRunner().invoke(app, ["replay", "--decisions", "--json", "--save-every", "1", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    ((one,),) = [each["would_do"] for each in json.loads(ran.stdout)]
    assert (one["saves"], one["decision"]["target_step"]) == ("named", 180)
    assert one["decision"]["changes"][0].startswith("seed 7 -> ")
