"""Pins against a retention that deletes, and what a filesystem still takes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel.adapters.checkpoints import PINNED, QUARANTINE, Checkpoints, room_for
from sentinel.vocabulary.errors import QuarantineError
from tests.adapters.checkpoint_files import deepspeed, digests, megatron_lm, save, tensors

WHERE = {"incident": "incident-1", "rollback": "incident-1-r1"}


@pytest.mark.parametrize("links_before_the_crash", range(4))
@pytest.mark.parametrize("make", [deepspeed, megatron_lm])
def test_a_pin_that_was_cut_short_is_taken_up_and_never_seen_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, int], Path], links_before_the_crash: int
) -> None:
    tag = make(tmp_path, 10).name
    pins, link, made = Checkpoints(tmp_path).pins, os.link, []

    def dies(*arguments: object, **more: object) -> None:
        if len(made) == links_before_the_crash:
            raise KeyboardInterrupt
        made.append(arguments)
        link(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as crash:
        crash.setattr("os.link", dies)
        crash.setattr("os.rename", dies)  # with three links all are there, and it dies before the rename
        with pytest.raises(KeyboardInterrupt):
            pins.pin(tag)
    assert pins.tags() == ()
    pins.pin(tag)
    assert pins.tags() == (tag,)
    assert [p.name for p in (tmp_path / PINNED).iterdir()] == [tag]


@pytest.mark.parametrize("gone", [False, True])  # whether a retention has left nothing but the pin
def test_a_pin_of_what_a_rollback_moves_away_is_no_target_and_undo_brings_it_back(tmp_path: Path, gone: bool) -> None:
    for step in (10, 20):
        deepspeed(tmp_path, step)
    (tmp_path / "latest").write_text("global_step20")
    seen, before = Checkpoints(tmp_path), digests(tmp_path / "global_step20")
    for step in (10, 20):
        seen.pins.pin(f"global_step{step}")
    if gone:
        shutil.rmtree(tmp_path / "global_step20")
    for _ in range(2):
        seen.quarantine([] if gone else ["global_step20"], **WHERE)
        seen.point_latest("global_step10", 10, **WHERE)
    assert (seen.pins.usable(), seen.pins.left()) == (("global_step10",), {"global_step20": "incident-1"})
    assert seen.pins.tags() == ("global_step10", "global_step20")  # a person's own is not let go
    for _ in range(2):
        seen.restore(**WHERE)
    assert (seen.pins.usable(), seen.pins.left()) == (("global_step10", "global_step20"), {})
    seen.pins.restore("global_step20")
    assert digests(tmp_path / "global_step20") == before


def test_a_pin_that_was_set_aside_is_released_like_any_other_and_after_a_newer_one(tmp_path: Path) -> None:
    seen = Checkpoints(tmp_path)
    tag = deepspeed(tmp_path, 10)
    seen.pins.pin(tag.name)
    seen.quarantine([tag.name], **WHERE)
    deepspeed(tmp_path, 10)
    seen.pins.pin(tag.name)
    assert seen.pins.let_go(tag.name)
    assert seen.pins.left() == {tag.name: "incident-1"}
    assert seen.pins.let_go(tag.name)
    assert seen.pins.tags() == ()


def test_another_checkpoint_of_a_pinned_name_is_told_and_not_mixed_in(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    pins = Checkpoints(tmp_path).pins
    pins.pin(tag.name)
    shutil.rmtree(tag)
    deepspeed(tmp_path, 10)
    before = digests(tmp_path)
    with pytest.raises(QuarantineError, match="unpin it first"):
        pins.pin(tag.name)
    with pytest.raises(QuarantineError, match="would overwrite it"):
        pins.restore(tag.name)
    assert digests(tmp_path) == before


def test_a_pin_cut_short_and_a_checkpoint_saved_again_are_not_mixed(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    unfinished = tmp_path / PINNED / f".{tag.name}.sentinel-pinned.unfinished"
    unfinished.mkdir(parents=True)
    save(unfinished / "mp_rank_00_model_states.pt", tensors(99))
    with pytest.raises(QuarantineError, match="move it away"):
        Checkpoints(tmp_path).pins.pin(tag.name)


def test_unpinning_moves_into_the_quarantine_and_deletes_nothing(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    pins, before = Checkpoints(tmp_path).pins, digests(tag)
    for number in (1, 2):
        pins.pin(tag.name)
        moved = pins.unpin(tag.name)
        assert moved == tmp_path / QUARANTINE / "unpinned" / f"r{number}" / tag.name
    shutil.rmtree(tag)
    assert {p.name for p in moved.iterdir()} == set(before)
    assert pins.tags() == ()
    with pytest.raises(QuarantineError, match="is not pinned; pinned are none"):
        pins.unpin(tag.name)
    with pytest.raises(QuarantineError, match="is not pinned; pinned are none"):
        pins.restore(tag.name)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.EIO])
def test_a_filesystem_without_hard_links_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tag = deepspeed(tmp_path, 10).name

    def refuses(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.link", refuses)
    pins, why = Checkpoints(tmp_path).pins, os.strerror(error)
    said = f"can't be linked to .*: {why}" if error == errno.EIO else f"makes no hard link .{why}"
    with pytest.raises(QuarantineError, match=said):
        pins.pin(tag)
    assert pins.tags() == ()


def test_a_checkpoint_with_a_link_in_it_is_not_pinned(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    (tag / "extra.pt").symlink_to("/etc/passwd")
    with pytest.raises(QuarantineError, match=r"is left alone: extra\.pt is neither"):
        Checkpoints(tmp_path).pins.pin(tag.name)


def filesystem(*, free_blocks: int = 1000, inodes: int = 100, free_inodes: int = 50) -> os.statvfs_result:
    return os.statvfs_result(
        (4096, 4096, 2000, free_blocks + 7, free_blocks, inodes, free_inodes + 7, free_inodes, 0, 255)
    )


@pytest.mark.parametrize(
    ("status", "needed", "files", "says"),
    [
        (filesystem(), 4096 * 1000, 50, None),
        (filesystem(), 4096 * 1000 + 1, 0, "0.0 GB free"),
        (filesystem(free_inodes=3), 1, 4, "room for 3 more files"),
        (filesystem(inodes=0, free_inodes=0), 1, 4, None),  # a filesystem that does not count inodes
    ],
)
def test_too_little_room_is_told(
    tmp_path: Path, status: os.statvfs_result, needed: int, files: int, says: str | None
) -> None:
    room = room_for(tmp_path, needed, files, statvfs=lambda _: status)
    assert room.problem is None if says is None else room.problem is not None and says in room.problem


def test_room_for_saves_is_asked_for_by_the_newest_checkpoints_size(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).room_for_saves(2) is None
    deepspeed(tmp_path, 5)
    newest = deepspeed(tmp_path, 10, data=3)
    room = Checkpoints(tmp_path).room_for_saves(2)
    assert room is not None
    assert room.problem is None
    sizes = [path.stat().st_size for path in newest.iterdir()]
    assert (room.needed_bytes, room.needed_files) == (2 * sum(sizes), 2 * len(sizes))
    too_many = Checkpoints(tmp_path).room_for_saves(1 << 50)
    assert too_many is not None
    assert too_many.problem is not None


def test_a_pin_is_let_go_where_every_file_has_another_name_and_no_sooner(tmp_path: Path) -> None:
    tag = megatron_lm(tmp_path, 10)
    pins, before = Checkpoints(tmp_path).pins, digests(tmp_path)
    assert pins.let_go(tag.name)  # it is not pinned
    for _ in range(2):
        pins.pin(tag.name)
        assert pins.let_go(tag.name)
        assert pins.tags() == ()
        assert list((tmp_path / PINNED).iterdir()) == []
        assert digests(tmp_path) == before
    pins.pin(tag.name)
    next(path for path in sorted(tag.rglob("*")) if path.is_file()).unlink()
    assert not pins.let_go(tag.name)
    assert pins.tags() == (tag.name,)
    shutil.rmtree(tag)
    assert not pins.let_go(tag.name)
    pins.restore(tag.name)
    assert digests(tmp_path) == before


def test_letting_go_that_was_cut_short_is_taken_up_and_loses_nothing(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    pins, before = Checkpoints(tmp_path).pins, digests(tmp_path)
    going = tmp_path / PINNED / f".{tag.name}.going"
    pins.pin(tag.name)
    (tmp_path / PINNED / tag.name).rename(going)
    next(going.iterdir()).unlink()
    assert pins.let_go(tag.name)
    assert not going.exists()
    assert digests(tmp_path) == before
    pins.pin(tag.name)
    (tmp_path / PINNED / tag.name).rename(going)
    shutil.rmtree(tag)
    assert not pins.let_go(tag.name)
    assert len(list(going.iterdir())) == 3


def test_pins_are_told_by_step_with_the_step_that_each_stands_for(tmp_path: Path) -> None:
    pins = Checkpoints(tmp_path).pins
    assert pins.tags() == ()
    for step in (100, 9, 20):
        pins.pin(deepspeed(tmp_path, step).name)
    assert pins.tags() == ("global_step9", "global_step20", "global_step100")
    assert [pins.step_of(tag) for tag in pins.tags()] == [9, 20, 100]
    shutil.rmtree(tmp_path / "global_step9")
    with pytest.raises(QuarantineError, match="pinned are global_step9, global_step20, global_step100"):
        pins.restore("global_step8")
    with pytest.raises(QuarantineError, match="'latest' is not the name of a checkpoint"):
        pins.step_of("latest")


def test_a_pin_whose_checkpoint_has_a_file_more_or_less_is_another_one(tmp_path: Path) -> None:
    tag = deepspeed(tmp_path, 10)
    pins = Checkpoints(tmp_path).pins
    pins.pin(tag.name)
    save(tag / "more.pt", tensors(1))
    with pytest.raises(QuarantineError, match="holds another global_step10: unpin it first"):
        pins.pin(tag.name)
    (tag / "more.pt").unlink()
    pins.pin(tag.name)
    next(tag.iterdir()).unlink()
    with pytest.raises(QuarantineError, match="would overwrite it"):
        pins.restore(tag.name)


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EIO])
def test_what_can_not_be_renamed_is_where_it_was_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tag = deepspeed(tmp_path, 10)
    before = digests(tmp_path)

    def refuses(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(Path, "rename", refuses)
    with pytest.raises(QuarantineError if error == errno.EXDEV else OSError, match=r"filesystem than|Input/output"):
        Checkpoints(tmp_path).quarantine([tag.name], incident="incident-1", rollback="incident-1-r1")
    assert digests(tmp_path) == before


def test_an_undo_leaves_no_pin_of_the_line_that_it_takes_back_as_a_target(tmp_path: Path) -> None:
    for step in (10, 20, 40):
        deepspeed(tmp_path, step)
    (tmp_path / "latest").write_text("global_step20")
    seen = Checkpoints(tmp_path)
    for step in (10, 20, 40):
        seen.pins.pin(f"global_step{step}")
    shutil.rmtree(tmp_path / "global_step40")  # by a retention, as those below
    seen.quarantine(["global_step20"], **WHERE)
    seen.point_latest("global_step10", 10, **WHERE)
    for step in (20, 30):  # of the new line
        seen.pins.pin(deepspeed(tmp_path, step).name)
        shutil.rmtree(tmp_path / f"global_step{step}")
    for _ in range(2):  # the second is of an undo that was killed
        there = {one.tag for one in seen.list()}
        seen.pins.leave(10, there, {"global_step20"}, **WHERE)
        seen.restore(**WHERE)
        assert seen.pins.usable() == ("global_step10", "global_step20", "global_step40")
        assert seen.pins.left() == {"global_step20": "incident-1", "global_step30": "incident-1"}
    assert (tmp_path / "global_step20").is_dir()
    assert seen.pins.let_go("global_step20")  # the first is of the checkpoint that is back
