"""KILL, SAVE and SIGTERM in real trainings of 2 ranks, where trainer_hooks may use no collective of the training."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.hooks.asked_trainings import KILL_AT, SAVE_AT, STEPS
from tests.hooks.request_cases import BY_TOKENS
from tests.hooks.torchrun import lines_of

pytestmark = pytest.mark.full

Ranks = list[dict[str, Any]]


@cache
def cases(which: str) -> dict[str, Ranks]:
    """{case: what each rank saw}."""
    found: dict[str, Ranks] = {}
    for line in lines_of("request_cases.py", which, ranks=2, timeout_s=300):
        if "rank" in line:
            found.setdefault(line["case"], []).append(line)
    assert all([line["rank"] for line in sorted(of, key=lambda of: of["rank"])] == [0, 1] for of in found.values())
    return found


OF_HUGGINGFACE = ("ESTALE", "EIO", "EACCES", "hangs", "asked", "no hook on rank 1", "KILL at the start", "LR by tokens")
OF_OTHERS = ("plain DeepSpeed", "Hugging Face with DeepSpeed", "reference", "SIGTERM of one rank", "Megatron")
EVERYWHERE = [
    *(("huggingface", case) for case in OF_HUGGINGFACE),
    *(pytest.param("others", case, marks=pytest.mark.full) for case in OF_OTHERS),
    pytest.param("fsdp2", "Hugging Face with FSDP 2", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("which", "case"), EVERYWHERE)
def test_no_collective_on_a_group_of_the_training_is_a_hooks(which: str, case: str) -> None:
    assert cases(which)["a collective of ours"][0]["is refused"]
    assert sum(cases(which)["all"][0]["asked_by"].values()) > 100  # the training's own were seen
    for rank in cases(which)[case]:
        assert rank["refused"] == []
        assert rank["ends"] != []


@pytest.mark.parametrize("case", ["ESTALE", "EIO", "EACCES", "hangs"])
def test_a_filesystem_that_fails_or_hangs_changes_no_gradient_and_asks_for_nothing(case: str) -> None:
    bare = cases("huggingface")["bare"][0]["weights"]
    assert len(bare) == STEPS
    for rank in cases("huggingface")[case]:
        assert rank["weights"] == bare  # after each step, on both ranks
        assert (rank["saved"], rank["ends"]) == ([], ["finished"])


@pytest.mark.parametrize("case", ["ESTALE", "EIO", "EACCES"])
def test_a_file_that_cannot_be_looked_for_is_an_error_once_however_often_it_fails(case: str) -> None:
    of_first, of_second = sorted(cases("huggingface")[case], key=lambda rank: rank["rank"])
    assert (of_first["errors"], of_second["errors"]) == (2, 0)  # KILL and SAVE
    assert of_first["looks"] > 10


def test_a_boundary_asks_torch_for_nothing() -> None:
    """So the training thread makes no copy to the host and no synchronization of a device there."""
    assert all(rank["ops"] == [] for rank in cases("huggingface")["asked"])


@pytest.mark.parametrize(
    ("which", "case"),
    [
        ("huggingface", "asked"),
        ("huggingface", "no hook on rank 1"),
        pytest.param("others", "Hugging Face with DeepSpeed", marks=pytest.mark.full),
        pytest.param("fsdp2", "Hugging Face with FSDP 2", marks=pytest.mark.full),
        pytest.param("others", "reference", marks=pytest.mark.full),
    ],
)
def test_all_ranks_save_once_and_end_at_the_same_step_soon_after_the_files_are_written(which: str, case: str) -> None:
    ranks = cases(which)[case]
    assert len({rank["steps"] for rank in ranks}) == 1
    assert KILL_AT + 2 <= ranks[0]["steps"] < STEPS
    if case != "no hook on rank 1":
        assert ranks[0]["ends"] == ["kill_file"]
        (saved,) = ranks[0]["saved"]
        assert SAVE_AT + 2 <= int(saved.removeprefix("checkpoint-").removeprefix("global_step")) <= KILL_AT


def test_kill_that_is_there_at_the_start_ends_the_training_after_its_first_step() -> None:
    assert [rank["steps"] for rank in cases("huggingface")["KILL at the start"]] == [1, 1]


def test_decisions_that_are_not_understood_end_the_start_on_every_rank_with_the_same_sentence() -> None:
    first, second = cases("huggingface")["refused"]
    assert "schema 99" in first["error"]
    assert first["error"] == second["error"]
    assert first["samples"] == 0


def test_a_learning_rate_by_tokens_is_the_same_on_ranks_whose_batches_differ_in_length() -> None:
    first, second = sorted(cases("huggingface")["LR by tokens"], key=lambda rank: rank["rank"])
    assert first["lrs"] == second["lrs"]
    assert len(set(first["lrs"])) == STEPS
    counted = [0, *first["tokens"].values()]  # by rank 0 alone
    longest = max(after - before for before, after in pairwise(counted))
    for step, lr in enumerate(first["lrs"], 1):
        assert lr == pytest.approx(BY_TOKENS.lr(step=step, consumed_tokens=counted[step - 1]), rel=0.2, abs=1e-12)
        assert lr <= BY_TOKENS.lr(step=step, consumed_tokens=counted[step - 1] + longest)


def test_sigterm_of_one_rank_ends_all_ranks_at_the_same_step() -> None:
    ranks = cases("others")["SIGTERM of one rank"]
    assert [rank["reason"] for rank in ranks] == ["sigterm", "sigterm"]
    assert len({rank["steps"] for rank in ranks}) == 1


def test_moments_that_are_reset_are_read_back_on_all_ranks() -> None:
    assert [rank["reset"] for rank in cases("others")["reference"]] == [[2], [2]]
