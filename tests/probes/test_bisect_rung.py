"""What a watch makes of a bisect's answer: which restart follows, and when none does. Tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sentinel.lab.bisect.seen import seen_of
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.other_rungs import Bisected
from sentinel.plan.observation import BisectSeen, Checkpoint
from sentinel.plan.restart.decision import decide_rung
from sentinel.plan.restart.rollback import Plan
from sentinel.plan.turn_bisect import asks_for_cause
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from tests.support.bisect_questions import (
    AGAIN,
    BATCH,
    CONTROL,
    FP32,
    INCIDENT,
    LOWER,
    LR,
    MOMENTS,
    NODE,
    ONSET,
    ORDER,
    OTHERS,
    RUN,
    SKIP,
    SLW,
    WARMUP,
    question,
    result,
)
from tests.support.probe_trainers import ALARM, AT, TAG
from tests.support.there import there

CAUSE = Rung(name="the cause", hypothesis="its bisect finds it", bisect=True)
RESEED = Rung(name="reseed", hypothesis="the order of the data did it", reseed=True)
POLICY = Policy(mode="act", ladder=(CAUSE, RESEED))
ASKED = question()
CALM = result(CONTROL, "calm", (ONSET, "grad_norm"))


def seen(found: dict[str, Any], *, running: bool = False, refusal: str | None = None) -> BisectSeen:
    """`found`: outcomes by name; all that is asked for before the answer stands has diverged."""
    results = {CONTROL: result(CONTROL, "diverged")} | {n: result(n, o) for n, o in found.items() if n != CONTROL}
    return seen_of(ASKED, results, running=running, refusal=refusal)


def made(told: BisectSeen) -> Overrides:
    assert told.over
    assert told.overrides is not None, told.reason
    return told.overrides


ILL = dict.fromkeys((SKIP, ORDER, FP32, LOWER, SLW, MOMENTS, NODE), "diverged")


@pytest.mark.parametrize(
    ("found", "cause", "probe"),
    [
        (
            {SKIP: "diverged", ORDER: "calm", **dict.fromkeys((FP32, LOWER, SLW, MOMENTS, NODE), "diverged")},
            "order",
            ORDER,
        ),
        ({**ILL, LOWER: "calm", WARMUP: "diverged"}, "learning rate", LOWER),
        ({**ILL, LOWER: "calm", WARMUP: "calm"}, "LR warmup", WARMUP),
        ({**ILL, SLW: "calm"}, "sequence length", SLW),
        ({**ILL, MOMENTS: "calm"}, "Adam's moments", MOMENTS),
    ],
)
def test_the_restart_makes_the_change_that_healed(found: dict[str, str], cause: str, probe: str) -> None:
    told = seen(found)
    assert told.reason.startswith(("the " + cause, cause))
    assert made(told) == ASKED.probes[probe].overrides
    assert (told.tag, told.global_step, told.needs_person) == (TAG, AT, False)


def test_suspected_samples_are_skipped_from_the_checkpoint_on_and_fp32_goes_by_its_option() -> None:
    skip = made(seen({SKIP: "calm", OTHERS: "diverged"}))
    assert there(skip.once).skip_samples == BATCH * (ALARM + 4 * (ALARM - AT)) - BATCH * AT
    assert skip.standing.lr == LR
    precise = made(seen({**ILL, FP32: "calm"}))
    assert there(precise.standing.free).options == ("--precision=fp32",)


@pytest.mark.parametrize("what", ["loss", "grad_norm", "adam_variance_l1", "param_norm"])
def test_what_a_machine_did_once_is_restarted_with_nothing_changed(what: str) -> None:
    control = result(CONTROL, "calm", (ONSET, what))
    told = seen_of(ASKED, {CONTROL: control, AGAIN: replace(control, name=AGAIN)}, running=False, refusal=None)
    assert told.reason.startswith("hardware")
    assert (made(told).standing, made(told).once) == (INCIDENT.baseline.standing, None)


def test_the_restart_repeats_what_was_done_once_where_the_window_begins() -> None:
    anchor = Anchor(global_step=AT, consumed_samples=BATCH * AT, consumed_tokens=8 * BATCH * AT)
    once = Once(id="incident-0-r1", reset_moments=True)
    before = Overrides(
        incident="incident-0", rollback="incident-0-r1", anchor=anchor, standing=TrainingSettings(), once=once
    )
    asked = question(incident=replace(INCIDENT, overrides_before=before))
    for name in (CONTROL, SKIP, LOWER):
        assert there(asked.restarts[name].once).reset_moments


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ({CONTROL: result(CONTROL, "unknown")}, "the control shows nothing"),
        ({CONTROL: CALM, AGAIN: replace(CALM, name=AGAIN, losses=())}, "the control did not diverge again"),  # possible
        ({n: result(n, "diverged") for n in (CONTROL, *ILL)}, "no change that was tried prevented it"),
    ],
)
def test_no_restart_follows_from_what_is_only_possible_and_the_next_rung_is_tried(
    results: dict[str, Any], says: str
) -> None:
    told = seen_of(ASKED, results, running=False, refusal=None)
    assert (told.over, told.overrides) == (True, None)
    assert says in told.reason
    plan = planned(told)
    assert says in there(plan.skip).reason


def test_it_is_over_once_nothing_runs_and_nothing_more_may_begin() -> None:
    assert not seen({SKIP: "diverged"}).over
    assert not seen({SKIP: "calm", OTHERS: "diverged"}, running=True).over
    assert not seen({SKIP: "diverged"}, running=True, refusal="8 probes were run").over
    spent = seen({SKIP: "diverged"}, refusal="8 probes were run")
    assert spent.over
    assert "8 probes were run" in spent.reason


def planned(told: BisectSeen | None, policy: Policy = POLICY, **state: Any) -> Plan:
    there = (Checkpoint(tag=TAG, global_step=AT, complete=True, verified=True),)
    run = RUN.changed(incidents=(INCIDENT,), bisect=told, **{"checkpoints": there, **state})
    return decide_rung(INCIDENT, run, policy)


FOUND = seen({SKIP: "calm", OTHERS: "diverged"})


def test_the_decision_is_the_bisects_from_its_own_checkpoint_under_the_incidents_own_name() -> None:
    decision = there(planned(FOUND).decision)
    assert (decision.id, decision.rung, decision.target_tag, decision.target_step) == (
        *("incident-1-r1", "the cause", TAG, AT),
    )
    assert decision.hypothesis == FOUND.reason
    assert decision.overrides.rollback == "incident-1-r1"
    assert there(decision.overrides.once).id == "incident-1-r1"
    assert any("samples of the data skipped" in change for change in decision.changes)


@pytest.mark.parametrize(
    "checkpoints",
    [
        (),
        (Checkpoint(tag=TAG, global_step=AT, complete=None),),
        (Checkpoint(tag=TAG, global_step=AT, complete=True, verified=False),),
    ],
)
def test_a_checkpoint_that_is_not_whole_any_more_is_no_target(checkpoints: tuple[Checkpoint, ...]) -> None:
    plan = planned(FOUND, checkpoints=checkpoints)
    assert "is not whole any more" in there(plan.skip).reason


def test_a_checkpoint_that_was_not_read_yet_is_read_before_it_is_a_target() -> None:
    plan = planned(FOUND, checkpoints=(Checkpoint(tag=TAG, global_step=AT, complete=True),))
    assert (plan.decision, len(plan.actions)) == (None, 1)


def test_a_broken_node_is_for_a_person_and_the_cause_is_asked_for_in_mode_act_alone() -> None:
    node = seen({**ILL, NODE: "calm"})
    assert node.needs_person
    assert "a machine has to be left out" in str(planned(node).refusal)
    assert planned(None).bisects
    assert planned(BisectSeen(reason="1 probe has ended")).bisects
    for mode in ("observe", "approve"):
        waits = planned(None, replace(POLICY, mode=mode))  # type: ignore[arg-type]
        assert (waits.bisects, waits.waits) == (False, True)
        assert "`sentinel bisect incident-1`" in str(waits.refusal)
        assert planned(FOUND, replace(POLICY, mode=mode)).decision is not None  # type: ignore[arg-type]


def test_the_cause_is_asked_for_when_its_rung_comes_next_and_its_hours_count_against_the_budget() -> None:
    assert asks_for_cause(INCIDENT, POLICY)
    assert not asks_for_cause(INCIDENT, Policy(ladder=(RESEED, CAUSE)))
    assert not asks_for_cause(None, POLICY)
    assert not asks_for_cause(replace(INCIDENT, status="stopped"), POLICY)
    assert not asks_for_cause(INCIDENT, Policy(ladder=()))
    assert replace(INCIDENT, bisect=Bisected(after_attempt=1, over="found", gpu_hours=2.5)).spent_gpu_hours == 2.5


def test_a_rung_that_asks_for_the_cause_has_no_other_key_and_is_one() -> None:
    with pytest.raises(ConfigError, match="bisect finds what is to be changed, so reseed would not be applied"):
        Rung(name="it", hypothesis="", bisect=True, reseed=True)
    with pytest.raises(ConfigError, match="one rung can"):
        Policy(ladder=(CAUSE, replace(CAUSE, name="again")))
