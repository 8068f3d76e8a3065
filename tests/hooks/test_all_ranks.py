"""The hook's own groups of ranks: exact, in one level or several, beside the training's own collectives, whatever
happens to a rank."""

from __future__ import annotations

import pytest

from tests.support.rank_cases import Case, run
from trainer_hooks.ranks import Ranks

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

STEPS = 60
CASES = (
    *("pauses:8:2", "pauses:5:4", "pauses:2:64", "split:4:2", "split:5:4"),
    *("no_network_on_one:5:2", "one_hangs:4:2", "one_never_attaches:3:64", "one_without_value:3:64"),
    *("drops:4:2", "stopped:4:2", "killed:5:2", "leaves_a_frozen_peer:4:2", "ends_with_a_slow_thread:6:4"),
)


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return run(*CASES)


def test_only_the_ranks_that_are_to_end_by_a_signal_do(cases: dict[str, Case]) -> None:
    signalled = {name: [r for r, told in case.items() if told["exit"] < 0] for name, case in cases.items()}
    assert {name: ranks for name, ranks in signalled.items() if ranks} == {
        "killed:5:2": [4],
        "leaves_a_frozen_peer:4:2": [0],
    }


@pytest.mark.parametrize(("name", "levels"), [("pauses:8:2", 3), ("pauses:5:4", 2), ("pauses:2:64", 1)])
def test_every_step_is_added_up_with_no_other_step(cases: dict[str, Case], name: str, levels: int) -> None:
    """Every rank has other numbers at each step, pauses at random, and exchanges numbers in between."""
    first = cases[name][0]
    assert (first["levels"], first["right"], first["wrong"]) == (levels, STEPS, [])
    assert first["states"] == {"20": True, "40": True, "60": True}
    assert all(told["errors"] == [] and told["over"] is None for told in cases[name].values())


@pytest.mark.parametrize("name", ["split:4:2", "split:5:4"])
def test_no_rank_waits_for_a_split_of_nccl(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert case[0]["right"] == 3
    assert all((told["splits"], told["groups"], told["names"]) == (0, 0, 90) for told in case.values())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_network_on_one:5:2", "rank 1 could not connect (RuntimeError:"),
        ("one_hangs:4:2", "rank 0 could not connect (TimeoutError: rank 1 has not made its group)"),
        ("one_never_attaches:3:64", "could not connect (TimeoutError: rank 1 has not made its group)"),
    ],
)
def test_one_rank_that_cannot_join_leaves_all_without_groups_and_the_training_with_its_own(
    cases: dict[str, Case], name: str, why: str
) -> None:
    case = cases[name]
    assert all(told["theirs"] == len(case) and not told["joined"] for told in case.values())
    reasons = {told["over"] for told in case.values() if told["done"]}  # a thread that still hangs knows nothing
    assert len(reasons) == 1
    assert why in reasons.pop()
    assert case[0]["reported"] == {"1": None, "2": None}  # the steps, and no reading
    assert len(case[0]["errors"]) == 1
    assert "the readings of the other ranks are not there" in case[0]["errors"][0]


def test_a_value_is_agreed_on_by_all_ranks_or_by_none(cases: dict[str, Case]) -> None:
    for told in cases["one_without_value:3:64"].values():
        assert told["first"] == {"lr_scale": 0.5, "free": None}
        assert told["second"] == "rank 1 did not come in time"
        assert told["third"] == "again"


def test_ranks_that_left_out_different_steps_are_together_again(cases: dict[str, Case]) -> None:
    first = cases["drops:4:2"][0]
    assert first["wrong"] == []
    assert first["after"] == list(range(41, 61))
    assert {"1 rank(s) could not read step 6", "3 rank(s) could not read step 12"} <= set(first["errors"])


def test_a_stopped_rank_delays_readings_and_no_step(cases: dict[str, Case]) -> None:
    case = cases["stopped:4:2"]
    assert (case[0]["wrong"], case[0]["last"]) == ([], 160)
    assert all(told["over"] is None for told in case.values())
    assert all(told["longest_s"] < 1.5 for rank, told in case.items() if rank != 3)  # it is stopped for 2 s


def test_a_dead_rank_ends_the_readings_and_not_the_others(cases: dict[str, Case]) -> None:
    case = cases["killed:5:2"]
    assert case[0]["before"]["right"] == 3
    assert (case[0]["right"], case[0]["wrong"]) == (3, [])
    for rank in range(4):
        assert "a rank or the network is gone" in case[rank]["over"]
        assert (case[rank]["flags"], case[rank]["done"], case[rank]["exit"]) == (None, True, 0)


def test_a_process_ends_while_a_peer_is_stopped(cases: dict[str, Case]) -> None:
    """At the end of the program, by sys.exit after the training left its own group, and by an error."""
    case = cases["leaves_a_frozen_peer:4:2"]
    assert [case[rank]["exit"] for rank in (1, 2, 3)] == [0, 3, 1]


def test_the_interpreter_ends_after_the_threads_that_call_torch(cases: dict[str, Case]) -> None:
    assert [told["exit"] for told in cases["ends_with_a_slow_thread:6:4"].values()] == [0] * 6


def test_64_ranks_with_a_slow_a_stopped_and_a_dead_one() -> None:
    cases = run("many:64:64")
    first = cases["many:64:64"][0]
    assert first["wrong"] == []
    assert first["slow"] == first["steps"]
    assert first["after_stop"] > 0
    assert "a rank or the network is gone" in first["over"]
    assert sum(told["exit"] == 0 for told in cases["many:64:64"].values()) == 63


def test_66_ranks_at_the_default_fan_read_every_step() -> None:
    first = run("pauses:66:64")["pauses:66:64"][0]
    assert (first["levels"], first["right"], first["wrong"]) == (2, STEPS, [])


def test_a_single_rank_needs_neither_groups_nor_a_thread() -> None:
    ranks = Ranks()
    assert ranks.exchange([3, -1]).wait() == [3, -1]
    assert ranks.union(["a", "b"]).wait(0) == ["a", "b"]
    assert ranks.agree({"a": 1}) == {"a": 1}
    assert ranks._threads == []
