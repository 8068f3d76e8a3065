"""States that the ranks of a training keep in memory: put back to the bit or not at all, kept only where they fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hooks.torchrun import lines_of
from trainer_hooks.in_memory.store import available_bytes

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]  # several processes start, on however few processors


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return lines_of("memory_cases.py", "2:fp32", "3:bf16", "damaged", "no room", "offloaded", ranks=2)


def of(lines: list[dict[str, Any]], case: str) -> list[dict[str, Any]]:
    """By rank."""
    return sorted((line for line in lines if line["case"] == case), key=lambda line: line["rank"])


def assert_put_back(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["equal"] == [True] * 4
        assert rank["same_place"]  # who holds a tensor of the state still holds it
        assert (rank["client"], rank["errors"]) == (8, 0)
        assert rank["gone"].startswith("CheckpointError: memory:4 can't be loaded: it is not kept: 6, 8 are")
    told = ranks[0]
    assert told["held"][:4] == [[2, 2], [4, 2, 4], [6, 4, 6], [8, 6, 8]]  # the last two, after each
    assert all(not rank["held"] for rank in ranks[1:])  # one rank writes the journal
    assert len({*told["digests"][:4]}) == 4
    assert len({*told["bytes"]}) == 1
    assert told["bytes"][0] % len(ranks) == 0


@pytest.mark.parametrize("case", ["2:fp32", "3:bf16"])
def test_a_state_that_is_put_back_trains_on_to_the_bit_in_this_engine_and_in_one_made_anew(
    lines: list[dict[str, Any]], case: str
) -> None:
    assert_put_back(of(lines, case))


@pytest.mark.parametrize(
    ("ranks", "cases"),
    [
        (2, ["0:fp32", "1:fp32", "3:fp32", "0:bf16", "1:bf16", "2:bf16"]),
        (1, ["0:fp32", "1:bf16", "3:fp32"]),
    ],
)
def test_so_it_is_in_every_form_of_zero_and_precision(ranks: int, cases: list[str]) -> None:
    lines = lines_of("memory_cases.py", *cases, ranks=ranks)
    for case in cases:
        assert_put_back(of(lines, case))


def test_where_one_rank_has_not_what_it_kept_all_of_them_refuse_with_one_sentence(lines: list[dict[str, Any]]) -> None:
    ranks = of(lines, "damaged")
    told = "CheckpointError: memory:4 can't be loaded: it is not what was kept: its digest differs (rank 1)"
    assert [rank["why"] for rank in ranks] == [told, told]
    assert all(rank["unchanged"] for rank in ranks)


def test_where_the_host_of_one_rank_has_no_room_the_start_is_refused_on_all_with_the_bytes(
    lines: list[dict[str, Any]],
) -> None:
    first, second = of(lines, "no room")
    assert first["why"] == second["why"]
    words = first["why"].split()
    assert words[:4] == ["ConfigError:", "memory_targets:", "3", "states"]
    assert int(words[8]) == 3 * int(words[5])
    assert "1000 bytes are available to each of its 2 ranks (rank 1)" in first["why"]


def test_a_form_that_was_not_tried_is_refused_with_a_sentence(lines: list[dict[str, Any]]) -> None:
    for rank in of(lines, "offloaded"):
        assert rank["why"].startswith("ConfigError: memory_targets: a state that is offloaded is not tried (rank ")


def host(root: Path, *, free_kb: int, groups: dict[str, tuple[str, int, int]]) -> Path:
    """/proc and /sys of a host; `groups`: folder below /sys/fs/cgroup -> limit, use, of that inactive files, bytes."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable: {free_kb} kB\n")
    (root / "proc" / "self" / "cgroup").write_text("0::/slurm/job_7\n")
    for name, (limit, used, files) in groups.items():
        folder = root / "sys" / "fs" / "cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "ranks", "available"),
    [
        ({}, 1, 2_048_000),
        ({}, 4, 512_000),
        ({"slurm/job_7": ("max", 5, 0)}, 1, 2_048_000),
        ({"slurm/job_7": ("1000000", 700000, 0)}, 1, 300000),
        ({"slurm/job_7": ("1000000", 700000, 200000)}, 2, 250000),  # files that were read make room
        ({"slurm/job_7": ("max", 5, 0), "slurm": ("900000", 800000, 0)}, 1, 100000),  # the one above has the limit
        ({"slurm/job_7": ("1000000", 1200000, 0)}, 1, 0),
    ],
)
def test_room_is_what_kernel_and_control_groups_would_still_give_by_ranks(
    tmp_path: Path, groups: dict[str, tuple[str, int, int]], ranks: int, available: int
) -> None:
    assert available_bytes(ranks, host(tmp_path, free_kb=2000, groups=groups)) == available
