"""Cutting TensorBoard: each tag on its own axis, checked with TensorBoard's own reader; nothing is lost."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.overrides import Anchor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}
AT = Anchor(global_step=30, consumed_samples=480, consumed_tokens=61440)
TAG = "lm-loss-training/lm loss"


def write(folder: Path, steps: range, suffix: str = "") -> None:
    writer = SummaryWriter(str(folder), filename_suffix=suffix)
    for step in steps:
        writer.add_scalar(TAG, step / 10, step)
        writer.add_scalar(f"{TAG} vs samples", step / 10, step * 16)
        writer.add_scalar(f"{TAG} vs tokens", step / 10, step * 2048)
    writer.close()


def read(folder: Path) -> dict[str, list[int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
        return {tag: sorted(s.step for s in events.Scalars(tag)) for tag in events.Tags()["scalars"]}


def inventory(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*tfevents*")}


def axes(steps: range) -> dict[str, list[int]]:
    return {
        TAG: list(steps),
        f"{TAG} vs samples": [s * 16 for s in steps],
        f"{TAG} vs tokens": [s * 2048 for s in steps],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for steps, suffix in ((range(1, 21), ".a"), (range(21, 41), ".b"), (range(41, 61), ".c")):
        write(tmp_path / "tb", steps, suffix)
    return tmp_path / "tb"


def test_each_tag_is_cut_on_its_own_axis(folder: Path) -> None:
    board = TensorBoard(folder)
    assert board.last_step() == 60
    board.cut(AT, **WHERE)
    assert read(folder) == axes(range(1, 31))
    assert board.last_step() == 30


def test_what_is_cut_off_is_a_run_of_its_own(folder: Path) -> None:
    TensorBoard(folder).cut(AT, **WHERE)
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(31, 61))


def test_files_before_the_cut_are_not_touched(folder: Path) -> None:
    first = next(folder.glob("*.a"))
    before = (first.stat().st_ino, first.stat().st_mtime_ns)
    TensorBoard(folder).cut(AT, **WHERE)
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == before


def test_undo_brings_every_byte_back_and_moves_what_came_since_aside(folder: Path) -> None:
    before = inventory(folder)
    board = TensorBoard(folder)
    board.cut(AT, **WHERE)
    write(folder, range(31, 50), ".retrained")
    assert read(folder)[TAG] == list(range(1, 50))
    board.restore(**WHERE)
    assert inventory(folder) == before
    parked = [p for p in folder.parent.rglob("*") if p.is_file() and ".retrained" in p.name]
    assert len(parked) == 1


def test_a_cut_done_twice_is_done_once(folder: Path) -> None:
    board = TensorBoard(folder)
    board.cut(AT, **WHERE)
    after = inventory(folder)
    TensorBoard(folder).cut(AT, **WHERE)
    assert inventory(folder) == after


@pytest.mark.parametrize("survives", range(1, 7))
def test_a_cut_killed_between_two_renames_is_taken_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """Dies at each rename in turn, then starts again as a new process would."""
    before = inventory(folder)
    real, count = Path.rename, 0

    def dying(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == survives:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dying)
        try:
            TensorBoard(folder).cut(AT, **WHERE)
        except KeyboardInterrupt:
            assert TensorBoard(folder).last_step() > AT.global_step  # so that the plan takes it up again
    TensorBoard(folder).cut(AT, **WHERE)
    assert read(folder) == axes(range(1, 31))
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(31, 61))
    TensorBoard(folder).restore(**WHERE)
    assert inventory(folder) == before


def test_an_axis_whose_value_is_unknown_goes_with_the_iterations(folder: Path) -> None:
    TensorBoard(folder).cut(Anchor(global_step=30), **WHERE)
    assert read(folder) == axes(range(1, 31))


def test_from_scratch_leaves_nothing_live(folder: Path) -> None:
    board = TensorBoard(folder)
    board.cut(Anchor(global_step=0, consumed_samples=0, consumed_tokens=0), **WHERE)
    assert board.last_step() == 0
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(1, 61))


def test_a_torn_last_record_loses_nothing_that_can_be_read(folder: Path) -> None:
    last = next(folder.glob("*.b"))
    last.write_bytes(last.read_bytes()[:-7])
    TensorBoard(folder).cut(AT, **WHERE)
    assert read(folder) == axes(range(1, 31))


def test_no_folder_is_no_work(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "none")
    assert board.last_step() == 0
    board.cut(AT, **WHERE)
    board.restore(**WHERE)
    assert not (tmp_path / "none").exists()


def test_what_is_cut_and_brought_back_can_be_cut_and_brought_back_again(folder: Path) -> None:
    """A rollback that was taken back half-way and then carried out after all: both leave what they parked."""
    before = inventory(folder)
    for _ in range(3):
        TensorBoard(folder).cut(AT, **WHERE)
        assert read(folder.with_name("tb-incident-1-r1")) == axes(range(31, 61))
        TensorBoard(folder).restore(**WHERE)
        assert inventory(folder) == before
