"""A hook may lose a sample; it may never lose a step: two real ranks train the same steps under every fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hooks.torchrun import lines_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several ranks start, on however few processors

KEEPS_SAMPLES = {
    *("nothing wrong", "port taken", "address of another machine", "no gradient norm", "nan in the weights"),
    *("no Adam's state", "a rank is late with one step's collectives", "certificate missing", "password missing"),
    *("exporter settings are none", "exporter's thread dies", "state folder removed"),
    "a rank stands still at the last step",
    *("attached twice", "attached again after the end", "logits can't be read"),
    *("Adam's state unreadable", "Adam's state of another shape"),
}
SAYS_NOTHING = {"nothing wrong", "nan in the weights", "no Adam's state", "attached again after the end"}
NOT_MEASURED = {"Adam's state unreadable", "Adam's state of another shape"}
"""Said once, and no error: the samples have no norm of v."""
COUNTS_NOTHING = SAYS_NOTHING | NOT_MEASURED | {"port taken", "state folder removed", "attached twice"}
LATE = {"a rank is late with one step's collectives", "a rank stands still at the last step"}
NEVER_COME = {"a rank leaves one step's collectives out", "a rank takes part no more"}
LOSES_SOME = {"a rank leaves one step's collectives out": 2}
"""What is left in the journal of the six samples: those before."""


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    return {case["case"]: case for case in lines_of("faults.py", ranks=2)}


def test_training_takes_the_same_steps_whatever_is_broken(cases: dict[str, dict[str, Any]]) -> None:
    sound = cases.pop("nothing wrong")
    ill = cases.pop("nan in the weights")
    assert len(cases) == 27
    assert len(sound["losses"]) == 6
    for name, case in cases.items():
        assert case["losses"] == sound["losses"], name
    cases.update({"nothing wrong": sound, "nan in the weights": ill})


def test_what_never_comes_is_waited_for_once_and_at_no_other_step(cases: dict[str, dict[str, Any]]) -> None:
    """A disk that hangs for ever is never waited for: the run would not have come to its end."""
    assert {name for name, case in cases.items() if case["patience_s"] == 0} - LATE == NEVER_COME


def test_ranks_that_cannot_come_are_never_waited_for(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["collectives fail on one rank"]
    assert case["patience_s"] == 1
    (said,) = case["said"]
    assert "the readings of the other ranks are not there: a rank or the network is gone" in said
    assert [r["kind"] for r in case["records"]] == ["run_started", "run_finished"]


def test_what_is_lost_is_counted_and_said_once(cases: dict[str, dict[str, Any]]) -> None:
    for name, case in cases.items():
        assert bool(case["errors"] + case["lost"]) == (name not in COUNTS_NOTHING), name
        assert bool(case["said"]) == (name not in SAYS_NOTHING), name
        assert len(case["said"]) == len(set(case["said"])) <= 3, name
        expected = "before you attach another" if name == "attached twice" else "training goes on"
        assert all(line.endswith(expected) for line in case["said"]), name


def test_attached_twice_is_one_attempt_and_a_warning(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["attached twice"]
    (said,) = case["said"]
    assert "attach was called twice on one engine: attempt 1 goes on" in said
    assert [r["global_step"] for r in case["records"] if r["kind"] == "sample"] == [1, 2, 3, 4, 5, 6]
    assert case["attempts"] == ["0001.jsonl"]


def test_the_exporter_is_announced_by_the_name_that_attach_is_given(cases: dict[str, dict[str, Any]]) -> None:
    (target,) = cases["attached twice"]["announced"]
    assert target.startswith("a-node:")
    assert cases["nothing wrong"]["announced"] == []  # it listens on this machine alone


def test_a_sample_is_whole_or_not_there(cases: dict[str, dict[str, Any]]) -> None:
    for name, case in cases.items():
        samples = [r for r in case["records"] if r["kind"] == "sample"]
        assert len(samples) == (6 if name in KEEPS_SAMPLES else LOSES_SOME.get(name, 0)), name
    for name in NOT_MEASURED:
        samples = [r for r in cases[name]["records"] if r["kind"] == "sample"]
        assert all(r["adam_variance_l1"] is None for r in samples), name
    assert all(r["grad_norm"] is None for r in cases["no gradient norm"]["records"] if r["kind"] == "sample")


def test_nan_in_the_weights_is_reported_as_nan_and_only_then(cases: dict[str, dict[str, Any]]) -> None:
    for name, case in cases.items():
        for sample in (r for r in case["records"] if r["kind"] == "sample"):
            ill = name == "nan in the weights"
            assert (sample["loss"] == "nan") == ill
            assert (sample["adam_variance_l1"] == "nan") == ill, name
            assert (sample["adam_variance_max"] == "nan") == ill
            assert (sample["loss_ratio"] == "inf") == ill


def test_an_error_on_one_rank_alone_is_known_on_rank_0(cases: dict[str, dict[str, Any]]) -> None:
    (said,) = cases["loss not seen on one rank"]["said"]
    assert "1 rank(s) could not read" in said
