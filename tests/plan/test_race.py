"""Races: which rungs run side by side, when the race is over, who wins and why; what is unknown never wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.plan.actions import StartProbe, StopJob, StopProbe
from sentinel.plan.incident import Adoption, Incident, Proof, Race
from sentinel.plan.incident_events import fold, opened, race_begun
from sentinel.plan.ladder import Rung
from sentinel.plan.observation import JobsSeen, Life, Standing
from sentinel.plan.policy import Policy
from sentinel.plan.race import adoption, next_of_race, race_of, winner
from sentinel.plan.rollback import plan_rollback
from sentinel.plan.turn import next_turn
from sentinel.vocabulary.numbers import dump_json, load_object
from tests.plan.looks import history, look
from tests.plan.test_recovery_plan import BASELINE, incident, run

LADDER = (
    Rung(name="reseed", hypothesis="the order of the data did it", reseed=True),
    Rung(name="earlier", hypothesis="it began before", target="earlier", reseed=True),
    Rung(name="lr", hypothesis="the LR is too high", lr_factor=0.5),
    Rung(name="person", hypothesis="the model is wrong", page=True),
)
POLICY = Policy(mode="act", ladder=LADDER, race=3, race_steps=100)
STATE = run(no_races=None)


def raced(policy: Policy = POLICY, **changed: Any) -> Race:
    found = race_of(incident(), replace(STATE, **changed), policy)
    assert isinstance(found, Race)
    return found


RACE = raced()


def ended(number: int, **changed: Any) -> Standing:
    name = f"incident-1-p{number}"
    saved = Adoption(probe=name, tag="global_step150", global_step=150)
    values: dict[str, Any] = {
        "life": Life.GONE,
        "last_step": 150,
        "proof": Proof.CONFIRMED,
        "saved": saved,
        "loss": 3.0,
    }
    return Standing(probe=name, **(values | changed))


def test_the_next_rungs_race_each_from_its_own_target_and_to_one_step_at_which_the_run_saves() -> None:
    assert [(e.id, e.rung, e.target_tag) for e in RACE.entrants] == [
        ("incident-1-p1", "reseed", "global_step30"),
        ("incident-1-p2", "earlier", "global_step10"),
        ("incident-1-p3", "lr", "global_step30"),
    ]
    assert RACE.until_step == 150  # 49, the late end of the onset, and 100 steps; it saves every 10
    assert [e.overrides.once and e.overrides.once.id for e in RACE.entrants] == ["incident-1-p1", "incident-1-p2", None]


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (replace(POLICY, race=1), STATE),
        (replace(POLICY, mode="approve"), STATE),
        (POLICY, replace(STATE, no_races="[launcher] command is empty")),
        (replace(POLICY, ladder=LADDER[:1]), STATE),
        (replace(POLICY, ladder=LADDER[2:]), STATE),
        (replace(POLICY, gpu_hours_budget=0.1), replace(STATE, step_time_s=1.0, world_size=8)),
    ],
)
def test_fewer_than_two_rungs_that_can_run_are_no_race(policy: Policy, state: Any) -> None:
    assert race_of(incident(), state, policy) is None


def test_as_many_race_as_the_gpu_hours_allow() -> None:
    assert RACE.gpu_hours is None  # nobody has measured the pace
    paced = {"step_time_s": 3.6, "world_size": 1000}  # a step is a GPU-hour; the three take 120 + 140 + 120
    assert raced(**paced).gpu_hours == 380
    assert len(raced(replace(POLICY, gpu_hours_budget=340.0), **paced).entrants) == 2


@pytest.mark.parametrize(
    ("standings", "parallel", "start", "stop"),
    [
        ([Standing(probe="a"), Standing(probe="b")], 1, "a", None),
        ([Standing(probe="a", life=Life.ALIVE), Standing(probe="b")], 1, None, None),
        ([Standing(probe="a", life=Life.ALIVE), Standing(probe="b")], 2, "b", None),
        ([Standing(probe="a", life=Life.UNKNOWN), Standing(probe="b")], 1, None, None),
        ([Standing(probe="a", life=Life.ALIVE, ill="diverged"), Standing(probe="b")], 1, None, "a"),
        ([Standing(probe="a", life=Life.ALIVE, last_step=150), Standing(probe="b")], 1, None, None),  # it is saving
        ([Standing(probe="a", life=Life.ALIVE, last_step=151), Standing(probe="b")], 1, None, "a"),
        ([Standing(probe="a", life=Life.GONE), Standing(probe="b")], 1, "b", None),
    ],
)
def test_one_step_at_a_time(standings: list[Standing], parallel: int, start: str | None, stop: str | None) -> None:
    found = next_of_race(RACE, standings, incident(), parallel)
    due = [(type(action), action.probe) for action in found.actions if isinstance(action, StartProbe | StopProbe)]
    assert due == [(kind, name) for kind, name in ((StartProbe, start), (StopProbe, stop)) if name is not None]
    assert found.records == ()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss": None}, "no loss at full length"),
        ({"loss": float("nan")}, "no loss at full length"),
        ({"proof": None}, "has not shown what it runs with"),
        ({"proof": Proof.CONTRADICTED, "doubts": ("lr",)}, "did not take effect: lr"),
        ({"saved": None}, "no whole checkpoint"),
        ({"last_step": 149}, "before step 150"),
        ({"last_step": None}, "before step 150"),
        ({"ill": "diverged: it does not come back"}, "diverged"),
        ({"refused": "no command"}, "could not be started"),
        ({"loss": 3.9}, "above 3.6, the best before the onset"),
    ],
)
def test_what_is_ill_or_unknown_never_wins(changed: dict[str, Any], said: str) -> None:
    others = [ended(n, ill="diverged") for n in (2, 3)]
    won, reason, told = winner(RACE, [ended(1, **changed), *others], incident())
    assert won is None
    assert "no probe is healthy at step 150" in reason
    assert said in told["incident-1-p1"]


@pytest.mark.parametrize(
    ("losses", "validations", "wins"),
    [
        ((3.0, 2.9, 2.5), (None, None, None), 3),
        ((2.52, 2.9, 2.5), (None, None, None), 1),  # alike: the rung that stands first
        ((3.0, 2.9, 2.5), (2.4, 2.6, 2.8), 1),  # by validation, where all have one
        ((3.0, 2.9, 2.5), (2.4, None, 2.8), 3),  # and by the training loss where one has none
        ((None, 2.9, 3.0), (None, None, None), 2),
    ],
)
def test_the_lowest_loss_at_full_length_wins(
    losses: tuple[float | None, ...], validations: tuple[float | None, ...], wins: int
) -> None:
    shown = [ended(n, loss=x, validation=v) for n, (x, v) in enumerate(zip(losses, validations, strict=True), 1)]
    won, reason, _ = winner(RACE, shown, incident())
    assert won is shown[wins - 1]
    assert reason.startswith(f"{RACE.entrants[wins - 1].rung!r} is the healthiest")


def test_a_validation_is_compared_with_the_run_s_own_before_the_onset() -> None:
    shown = [ended(n, validation=3.2, best_validation_before=3.0) for n in (1, 2, 3)]
    assert winner(RACE, shown, incident())[0] is None
    assert winner(RACE, [replace(s, validation=3.1) for s in shown], incident())[0] is not None


def test_the_winner_s_decision_is_the_rung_s_own_and_goes_on_from_its_checkpoint() -> None:
    won = Adoption(probe="incident-1-p2", tag="global_step150", global_step=150)
    made = adoption(RACE, won, incident(), STATE)
    assert (made.id, made.overrides.rollback, made.adopts) == ("incident-1-r1", "incident-1-r1", won)
    assert made.overrides.once is not None
    assert made.overrides.once.id == "incident-1-p2"  # as the checkpoint has it on record
    assert (made.rung, made.target_tag) == ("earlier", "global_step10")


def test_an_adopted_checkpoint_that_is_gone_before_the_start_ends_it_and_is_not_pointed_at_for_ever() -> None:
    won = Adoption(probe="incident-1-p2", tag="global_step150", global_step=150)
    made = adoption(RACE, won, incident(), STATE)
    gone = plan_rollback(made, replace(STATE, adoptions={made.id: True}, jobs=JobsSeen()), POLICY)
    assert gone.refusal == "global_step150, adopted from incident-1-p2, is not there any more: undo incident-1-r1"


def told(*events: Any) -> Incident:
    begun = opened(1, 1, BASELINE, None, reason="it does not come back")
    (found,) = fold(load_object(dump_json({**e, "time_unix_s": 9.0})) for e in (begun, *events))
    return found


def test_the_log_gives_back_the_race_and_its_rungs_count_as_tried() -> None:
    begun = race_begun("incident-1", RACE)
    found = told(begun)
    assert found.race is not None
    assert [e.overrides for e in found.race.entrants] == [e.overrides for e in RACE.entrants]
    assert found.tried == 3
    lost = next_of_race(RACE, [ended(n, ill="diverged") for n in (1, 2, 3)], incident(), 1).records[0]
    assert told(begun, lost).race is None
    none_ran = next_of_race(RACE, [ended(n, refused="no command") for n in (1, 2, 3)], incident(), 1).records[0]
    assert told(begun, none_ran).tried == 0


def test_a_job_that_a_person_starts_during_a_race_is_let_go_on() -> None:
    begun = replace(RACE, after_attempt=1, started=frozenset({"incident-1-p1"}))
    found = look(incidents=(incident(races=[begun]),), history=history({1: 88, 2: 3}))
    turn = next_turn(found, POLICY)
    assert ([e["event"] for e in turn.records], turn.actions) == (["stopped"], ())
    assert turn.reason == "attempt 2 began during the race of incident-1: it is left running"


@pytest.mark.parametrize("changed", [{"paused": True}, {"kill_file": True}])
def test_a_race_of_a_run_that_is_paused_starts_nothing(changed: dict[str, bool]) -> None:
    found = look(incidents=(incident(races=[RACE]),), race=(Standing(probe="incident-1-p1"),), **changed)
    assert next_turn(found, POLICY).actions == ()
    gone = JobsSeen(writers=())
    found = look(incidents=(incident(races=[RACE]),), race=(Standing(probe="incident-1-p1"),), jobs=gone)
    assert next_turn(found, POLICY).actions == (StartProbe("incident-1-p1", "incident-1"),)


def test_the_job_is_stopped_before_the_first_probe_begins() -> None:
    found = look(incidents=(incident(races=[RACE]),), race=(Standing(probe="incident-1-p1"),))
    assert next_turn(found, POLICY).actions == (StopJob(("process 41", "process 42")),)
