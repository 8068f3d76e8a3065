"""A state in the trainer's memory as the target of a restart in place, and what takes its place on disk."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import reduce

import pytest

from sentinel.judge.unhealthy_spans import UnhealthySpan
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.events import decided, fold, opened
from sentinel.plan.incident.incident import Rollback, digest_of
from sentinel.plan.incident.log_events import Decided
from sentinel.plan.incident.log_lines import event_of
from sentinel.plan.incident.log_outcomes import InPlaceGivenUp
from sentinel.plan.outcome import Memory
from sentinel.plan.readings_seen import JournalFacts
from sentinel.plan.restart.actions import (
    Action,
    CutTensorBoard,
    Park,
    PointLatest,
    QuarantineCheckpoints,
    Resume,
    StartJob,
    WriteOverrides,
)
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand, read_first
from sentinel.plan.restart.decision import decide_rung
from sentinel.plan.restart.rollback import plan_rollback
from sentinel.plan.turn import decide
from tests.plan.simulated_run import World
from tests.support.parked_runs import ROLLBACK, after, gone, parked, training
from tests.support.recovery_plans import BASELINE, POLICY, checkpoint, incident
from tests.support.stories import STORIES

HELD = (15, 25, 35, 65, 85)
RESEED = Policy(mode="act", margin_steps=10, ladder=(Rung(name="reseed", hypothesis="the data", reseed=True),))


def keeping(*held: int, **changed: object) -> Facts:
    """A diverged run (onset 47 to 49, checkpoints at 10, 20 … 80) whose ranks keep the states of these steps."""
    journal = JournalFacts(number=1, reported=True, can_park=True, made=88, memory=held)
    return training(**({"journals": (journal,)} | changed))


def rung(facts: Facts, policy: Policy = RESEED) -> Rollback:
    made = decide_rung(incident(), facts, policy).decision
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("held", "changed", "policy", "target", "on_disk"),
    [
        (HELD, {}, RESEED, "memory:35", "global_step30"),
        ((15, 25), {}, RESEED, "global_step30", None),
        ((30,), {}, RESEED, "global_step30", None),  # of one step the one that outlives the process
        (HELD, {}, replace(RESEED, restart="job"), "global_step30", None),
        (HELD, {"by_newest": True}, RESEED, "global_step30", None),
        (
            HELD,
            {"unhealthy_spans": (UnhealthySpan(first_step=26, last_step=36, words="the loss", worst=9.0, usual=3.0),)},
            RESEED,
            "memory:25",
            "global_step20",
        ),
        (HELD, {"checkpoints": (checkpoint(80),)}, RESEED, "memory:35", None),
    ],
)
def test_the_target_is_the_newest_healthy_state_of_both_kinds_and_in_memory_only_in_place(
    held: tuple[int, ...], changed: dict[str, object], policy: Policy, target: str, on_disk: str | None
) -> None:
    made = rung(keeping(*held, **changed), policy)
    assert made.target_tag == target
    assert (made.on_disk is not None) is target.startswith("memory:")
    assert made.saved_tag == (on_disk if made.on_disk is not None else target)


def test_later_checkpoints_go_latest_names_the_last_one_that_stays_and_the_trainer_is_told_of_its_memory() -> None:
    facts = keeping(*HELD)
    actions = plan_rollback(rung(facts), facts, RESEED).actions
    assert [type(a) for a in actions] == [
        Park,
        QuarantineCheckpoints,
        PointLatest,
        CutTensorBoard,
        WriteOverrides,
        Resume,
    ]
    of_kind = {type(a): a for a in actions}
    assert of_kind[QuarantineCheckpoints].tags == tuple(f"global_step{n}" for n in (40, 50, 60, 70, 80))
    assert (of_kind[PointLatest].tag, of_kind[PointLatest].global_step) == ("global_step30", 30)
    assert (of_kind[Resume].target, of_kind[Resume].global_step) == ("memory:35", 35)
    assert of_kind[CutTensorBoard].at == of_kind[WriteOverrides].overrides.anchor == facts.readings.anchor(35)


@pytest.mark.parametrize("done", range(7))
def test_a_plan_to_a_state_in_memory_that_is_cut_short_is_taken_up_where_it_stopped(done: int) -> None:
    facts = keeping(*HELD)
    whole = plan_rollback(rung(facts), facts, RESEED).actions
    state = reduce(after, whole[:done], facts)
    assert plan_rollback(rung(facts), state, RESEED).actions == whole[done:]


def carried_out(facts: Facts, decision: Rollback) -> Facts:
    return facts.changed(incidents=(incident(status="decided", rollbacks=[decision]),))


@pytest.mark.parametrize("done", range(1, 6))
def test_where_the_process_dies_the_same_rollback_goes_on_from_the_checkpoint_on_disk_and_says_so(done: int) -> None:
    facts = keeping(*HELD)
    decision = rung(facts)
    state = reduce(after, plan_rollback(decision, facts, RESEED).actions[:done], facts)
    turn = decide(carried_out(gone(state), decision), RESEED, Memory())
    (event,) = turn.records
    assert isinstance(event, InPlaceGivenUp)
    assert event.reason.endswith("memory:35 is lost with it: the target is global_step30")
    assert "memory:35 is lost with it" in (turn.message or "")
    log = (
        opened(1, 1, BASELINE, None, reason="it does not come back", verdict=facts.verdict),
        decided("incident-1", decision),
        event,
    )
    (made,) = fold(log)
    (now,) = made.rollbacks
    assert (now.target_tag, now.target_step, now.on_disk, now.in_place) == ("global_step30", 30, None, False)
    assert now.lost_steps > decision.lost_steps
    rest = plan_rollback(now, gone(state), RESEED).actions
    end = reduce(after, rest, gone(state))
    assert isinstance(rest[-1], StartJob)
    assert end.folders.latest_tag == "global_step30"
    assert end.folders.overrides == now.overrides
    assert now.overrides.anchor == facts.readings.anchor(30)
    assert end.folders.checkpoints[-1].global_step == 30


@pytest.mark.parametrize(
    ("name", "resumed_from", "anchor"),
    [("recovers in place, from memory", 35, 35), ("dies while it is resumed from memory", 30, 30)],
)
def test_the_run_that_follows_begins_at_the_target_that_the_log_has_in_the_end(
    name: str, resumed_from: int, anchor: int
) -> None:
    story, *_ = STORIES[name]
    world = World(story)
    deque(world.follow(), maxlen=0)
    (made,) = fold(world.events)
    (rollback,) = made.rollbacks
    assert (rollback.target_step, rollback.overrides.anchor.global_step) == (resumed_from, anchor)
    assert world.state.folders.overrides == rollback.overrides
    assert world.state.folders.latest_tag == "global_step30"
    last = world.history.latest
    assert last is not None
    assert last.started is not None
    assert last.started.resumed_from == resumed_from


def test_a_target_that_newer_states_have_replaced_before_it_was_parked_is_given_up() -> None:
    decision = rung(keeping(*HELD))
    plan = plan_rollback(decision, parked(keeping(65, 85, 105)), RESEED)
    assert plan.gives_up is not None
    assert plan.gives_up.startswith(
        "attempt 1 does not keep memory:35 any more, but memory:65, memory:85, memory:105; "
    )
    assert not plan.actions
    resumed = replace(decision, resumed=True, last_start_unix_s=1999.0)
    assert plan_rollback(resumed, keeping(65), RESEED).gives_up is None  # it was taken: its start is waited for


def test_a_decision_keeps_its_target_by_value_with_what_takes_its_place_and_a_yes_is_to_both() -> None:
    decision = rung(keeping(*HELD))
    told = Decided.of("incident-1", decision).to_json() | {"time_unix_s": 1.0}
    read = event_of(told)
    assert isinstance(read, Decided)
    assert read.to_json() == told
    assert read.on_disk == decision.on_disk
    on_disk = rung(keeping())
    assert "on_disk" not in Decided.of("incident-1", on_disk).to_json()
    elsewhere = replace(decision, on_disk=replace(decision.on_disk, tag="global_step20"))  # type: ignore[type-var]
    assert len({digest_of(decision), digest_of(on_disk), digest_of(elsewhere)}) == 3


def test_what_takes_its_place_is_read_whole_before_anything_is_decided() -> None:
    unread = keeping(*HELD, checkpoints=tuple(checkpoint(s, verified=None) for s in range(10, 90, 10)))
    plan = decide_rung(incident(), unread, RESEED)
    assert [getattr(a, "tag", None) for a in plan.actions] == ["global_step30"]
    assert plan.decision is None
    first = read_first(ManualRollback(to="memory:35"), unread)
    assert first is not None
    assert first.tag == "global_step30"


@pytest.mark.parametrize(
    ("wanted", "facts", "refusal"),
    [
        ({"to": "memory:36"}, keeping(*HELD), "there is no state memory:36 in memory; those there are memory:15, "),
        ({"to": "memory:35"}, training(), "there is no state memory:35 in memory; the trainer keeps none"),
        ({"to": "memory:65"}, keeping(*HELD), "memory:65 is after the onset (step 47) and contains the divergence"),
        (
            {"to": "memory:35", "restart": "job"},
            keeping(*HELD),
            "memory:35 is in the memory of the trainer's processes, and the restart is a new job: a person asked",
        ),
        ({"to": "memory:35", "start": False}, keeping(*HELD), "memory:35 is in the memory of the trainer's processes"),
        ({"to": "memory:35"}, keeping(*HELD, by_newest=True), "memory:35: nothing but the newest checkpoint would say"),
    ],
)
def test_a_person_is_told_why_a_state_in_memory_is_no_target(
    wanted: dict[str, object], facts: Facts, refusal: str
) -> None:
    refused = plan_by_hand(ManualRollback(**wanted), facts, POLICY).refusal  # type: ignore[arg-type]
    assert refused is not None
    assert refused.startswith(refusal)


def test_a_person_goes_back_to_a_state_in_memory_by_its_name() -> None:
    facts = keeping(*HELD).changed(incidents=())
    plan = plan_by_hand(ManualRollback(to="memory:25"), facts, POLICY)
    assert plan.decision is not None
    assert (plan.decision.target_tag, plan.decision.target_step, plan.decision.saved_tag) == (
        "memory:25",
        25,
        "global_step20",
    )
    last: Action = plan.actions[-1]
    assert isinstance(last, Resume)
    assert last.target == "memory:25"
    assert last.rollback == ROLLBACK
