"""Cutting TensorBoard: each tag on its own axis, checked with TensorBoard's own reader; nothing is lost."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.event_files import spans
from sentinel.adapters.event_files.frames import EventFile
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.errors import QuarantineError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor
from tests.adapters.boards import AT, TAG, WHERE, Event, axes, inventory, read, scalar, three, write, write_file
from tests.adapters.synced import synced


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for steps, suffix in ((range(1, 21), ".a"), (range(21, 41), ".b"), (range(41, 61), ".c")):
        write(tmp_path / "tb", steps, suffix)
    return tmp_path / "tb"


def test_each_tag_is_cut_on_its_own_axis_and_what_is_cut_off_is_a_run_of_its_own(folder: Path) -> None:
    """Files before the cut are not touched; a cut done twice is done once."""
    first, board = next(folder.glob("*.a")), TensorBoard(folder)
    before = (first.stat().st_ino, first.stat().st_mtime_ns)
    assert board.last_step() == 60
    board.cut(AT, **WHERE)
    after = inventory(folder)
    TensorBoard(folder).cut(AT, **WHERE)
    assert inventory(folder) == after
    assert read(folder) == axes(range(1, 31))
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(31, 61))
    assert board.last_step() == 30
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


def test_what_a_cut_and_its_undo_moved_is_on_the_disk_when_they_return(folder: Path) -> None:
    write(folder / "validation", range(31, 41), ".d")
    with synced(folder.parent):
        TensorBoard(folder).cut(AT, **WHERE)
    write(folder, range(31, 50), ".retrained")
    with synced(folder.parent):
        TensorBoard(folder).restore(**WHERE)


def test_a_rollback_whose_target_is_an_earlier_one_since_is_cut_there_and_undone_as_a_whole(folder: Path) -> None:
    """As where a state in memory is lost with its process: it was cut for that, and perhaps trained on from there."""
    before = inventory(folder)
    board = TensorBoard(folder)
    board.cut(Anchor(global_step=45, consumed_samples=45 * 16), **WHERE)
    write(folder, range(46, 50), ".from-memory")
    board.cut(AT, **WHERE)
    assert read(folder) == axes(range(1, 31))
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(31, 61))
    after = inventory(folder)
    TensorBoard(folder).cut(AT, **WHERE)
    assert inventory(folder) == after
    board.restore(**WHERE)
    assert inventory(folder) == before
    assert any(".from-memory" in p.name for p in folder.parent.rglob("*"))


def test_no_folder_is_no_work(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "none")
    assert board.last_step() == 0
    board.cut(AT, **WHERE)
    board.restore(**WHERE)
    assert not (tmp_path / "none").exists()


def test_a_file_is_read_once_however_many_look_at_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read is written down; after that, a cut opens the file that spans it and no other."""
    monkeypatch.setattr(spans, "_SAVE_AFTER_BYTES", 1)
    index = tmp_path / "state" / "index.json"
    TensorBoard(folder, index).last_step()
    opened = []
    real = spans.open_regular

    def noting(path: Path) -> Any:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(spans, "open_regular", noting)
    board = TensorBoard(folder, index)
    assert board.last_step() == 60
    report = board.cut(AT, **WHERE)
    assert opened == report.cut
    assert len(opened) == 1
    assert report.moved == [next(folder.with_name("tb-incident-1-r1").glob("*.c")).name]


@pytest.mark.parametrize(
    "name", ["with space", "new\nline", "[abc]*?", "ümläut", "\udcff\udcfe", "a.new", "x.sentinel"]
)
def test_names_with_odd_characters_come_through(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "tb"
    events = [event for step in range(21, 41) for event in three(step)]
    write_file(folder / name / f"events.out.tfevents.1.{name}", events)
    before = inventory(folder)
    board = TensorBoard(folder, tmp_path / name / "index.json")
    assert board.cut(AT, **WHERE).cut == [f"{name}/events.out.tfevents.1.{name}"]
    for run, steps in ("tb", range(21, 31)), ("tb-incident-1-r1", range(31, 41)):
        plain = tmp_path / f"plain-{run}"  # TensorBoard itself can't open a name that is not UTF-8
        plain.mkdir()
        next((tmp_path / name / run / name).iterdir()).rename(plain / "events.out.tfevents.1")
        assert read(plain) == axes(steps)
        (plain / "events.out.tfevents.1").rename(
            tmp_path / name / run / name / f"events.out.tfevents.1.{name}{'.cut-off' * (run != 'tb')}"
        )
    board.restore(**WHERE)
    assert inventory(folder) == before


def test_a_git_work_tree_around_the_folder_is_found(folder: Path, tmp_path: Path) -> None:
    assert TensorBoard(folder).git_work_tree() is None
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")  # as in a submodule or a further work tree
    assert TensorBoard(folder).git_work_tree() == tmp_path.resolve()
    (tmp_path / "by-link").symlink_to(folder)
    assert TensorBoard(tmp_path / "by-link").git_work_tree() == tmp_path.resolve()


def test_a_folder_that_is_a_git_work_tree_keeps_its_repository(folder: Path) -> None:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    branch = folder / ".git" / "refs" / "heads" / "tfevents-kept"
    branch.write_text("0" * 40)
    board = TensorBoard(folder)
    board.cut(Anchor(global_step=0), **WHERE)
    assert branch.exists()
    assert board.git_work_tree() == folder.resolve()


def test_a_cut_and_an_undo_killed_anywhere_are_taken_up(folder: Path, tmp_path: Path) -> None:
    """Dies before each rename and each fsync in turn, until there is none left to die at."""
    before = inventory(folder)
    for killed_at in range(1, 200):
        undone = tmp_path / f"undone-at-{killed_at}" / "tb"
        shutil.copytree(folder, undone)
        dies(killed_at, lambda undone=undone: TensorBoard(undone).cut(AT, **WHERE))
        TensorBoard(undone).restore(**WHERE)
        assert inventory(undone) == before
        live = [p for place in undone.parent.glob("tb*") for p in place.rglob("*") if p.is_file()]
        assert len(live) == len(before)  # and nothing half-written beside them
        again = tmp_path / f"killed-at-{killed_at}" / "tb"
        shutil.copytree(folder, again)
        died = [dies(killed_at, lambda again=again: TensorBoard(again).cut(AT, **WHERE))]
        if died[0]:
            assert TensorBoard(again).last_step() > AT.global_step or read(again) == axes(range(1, 31))
        TensorBoard(again).cut(AT, **WHERE)
        assert read(again) == axes(range(1, 31))
        assert read(again.with_name("tb-incident-1-r1")) == axes(range(31, 61))
        died.append(dies(killed_at, lambda again=again: TensorBoard(again).restore(**WHERE)))
        TensorBoard(again).restore(**WHERE)
        assert inventory(again) == before
        assert not list(again.rglob("*.sentinel-*"))
        if not any(died):
            assert killed_at > 20
            return
    pytest.fail("a cut has two hundred steps?")


def dies(at: int, do: Callable[[], object]) -> bool:
    """Whether it came to the Nth of its renames and fsyncs, before which it is killed."""
    count = 0

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object) -> object:
            nonlocal count
            count += 1
            if count == at:
                raise KeyboardInterrupt
            return real(*arguments)

        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "replace", dying(Path.replace))
        patch.setattr(os, "fsync", dying(os.fsync))
        try:
            do()
        except KeyboardInterrupt:
            return True
    return False


def test_a_file_that_another_one_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    """As `rsync` does it: by a rename. Its records end where those of the old one ended, and it is longer."""
    live = write_file(tmp_path / "tb" / "events.out.tfevents.1.a", [scalar(TAG, step) for step in range(100, 111)])
    board = TensorBoard(tmp_path / "tb")
    assert board.last_step() == 110
    steps = (90, *range(1, 31))
    write_file(tmp_path / "new", [scalar(TAG, step) for step in steps]).replace(live)
    assert board.last_step() == 90


def test_a_rename_of_a_cut_is_on_the_disk_before_the_next_one_in_another_folder_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine leaves what a kill between two renames leaves."""
    write(folder / "validation", range(21, 41), ".d")
    pending: set[int] = set()
    real, fsync = Path.rename, os.fsync

    def renaming(self: Path, target: Path) -> Path:
        here = {place.stat().st_ino for place in (self.parent, Path(target).parent)}
        assert pending <= here, self
        moved = real(self, target)
        pending.update(here)
        return moved

    def syncing(descriptor: int) -> None:
        fsync(descriptor)
        pending.discard(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(Path, "rename", renaming)
    monkeypatch.setattr(os, "fsync", syncing)
    report = TensorBoard(folder).cut(AT, **WHERE)
    assert (len(report.cut), len(report.moved)) == (2, 1)
    assert not pending


def test_a_cut_tells_which_files_it_cut_and_which_it_moved(folder: Path) -> None:
    write(folder / "validation", range(21, 41), ".d")
    report = TensorBoard(folder).cut(AT, **WHERE)
    names = [sorted(name.rpartition(".")[2] for name in part) for part in (report.cut, report.moved)]
    assert names == [["b", "d"], ["c"]]
    assert [name.partition("/")[0] for name in report.cut if name.endswith(".d")] == ["validation"]
    assert (report.kept_whole, report.remarks, report.sentences()) == ({}, [], [])
    aside = folder.with_name("tb-incident-1-r1")
    assert sorted(p.name.rpartition(".tfevents.")[0] for p in aside.rglob("*tfevents*")) == ["events.out"] * 3
    assert len(list(aside.rglob("*.cut-off"))) == 2
    room = folder.parent / ".sentinel-quarantine" / "incident-1" / "incident-1-r1" / "tb-originals"
    assert len(list(room.rglob("*tf-events*"))) == 2
    assert not list(room.rglob("*tfevents*"))  # TensorBoard would load it


def test_an_undo_that_is_done_is_not_done_again(folder: Path) -> None:
    board = TensorBoard(folder)
    board.cut(AT, **WHERE)
    board.restore(**WHERE)
    write(folder, range(61, 70), ".since")
    after = inventory(folder)
    board.restore(**WHERE)
    assert inventory(folder) == after


def test_what_undo_puts_aside_has_a_place_of_its_own_each_time(folder: Path) -> None:
    board, name = TensorBoard(folder), "events.out.tfevents.9.since"
    for step in (31, 32, 33):
        board.cut(AT, **WHERE)
        write_file(folder / name, [scalar("since", step)])
        board.restore(**WHERE)
    after = folder.parent / ".sentinel-quarantine" / "incident-1" / "incident-1-r1" / "tb-originals" / "after"
    parked = {p.name.partition(".since")[2]: p for p in after.iterdir() if ".since" in p.name}
    assert sorted(parked) == ["", ".1", ".2"]
    assert all("tfevents" not in p.name for p in after.iterdir())
    steps = []
    for suffix in ("", ".1", ".2"):
        (found,) = {event.step for event in map(Event.FromString, raw_records(parked[suffix])) if event.summary.value}
        steps.append(found)
    assert steps == [31, 32, 33]


def raw_records(path: Path) -> list[bytes]:
    """Of a file, whatever its name is."""
    with path.open("rb") as file:
        return [
            stretch.data[a + 12 : b - 4]
            for stretch in EventFile(file).stretches()
            for a, b in zip(stretch.starts.tolist(), stretch.ends.tolist(), strict=True)
        ]


@pytest.mark.parametrize(
    "link", ["", "incident-1", "incident-1/incident-1-r1", "incident-1/incident-1-r1/tb-originals"]
)
def test_a_quarantine_that_is_a_link_is_refused(folder: Path, tmp_path: Path, link: str) -> None:
    before = inventory(folder)
    (tmp_path / "elsewhere").mkdir()
    place = folder.parent / ".sentinel-quarantine" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "elsewhere")
    for call in (lambda: TensorBoard(folder).cut(AT, **WHERE), lambda: TensorBoard(folder).restore(**WHERE)):
        with pytest.raises(QuarantineError, match="is a link: what is moved there could end anywhere"):
            call()
    assert inventory(folder) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_above_the_folder_is_the_users_own_affair(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "project").symlink_to(folder.parent)
    assert TensorBoard(tmp_path / "project" / "tb").cut(AT, **WHERE).cut
    assert read(folder) == axes(range(1, 31))


@pytest.mark.parametrize("name", [7, None, "", "/etc/passwd", "a\0b", "../x", "a/../../x", ".."])
def test_a_listing_that_names_a_file_elsewhere_is_refused(folder: Path, name: object) -> None:
    board = TensorBoard(folder)
    board.cut(AT, **WHERE)
    content = inventory(folder)
    listing = folder.parent / ".sentinel-quarantine" / "incident-1" / "incident-1-r1" / "tb-originals" / "files.json"
    listing.write_text(dump_json({"files": [name]}))
    with pytest.raises(QuarantineError, match="which is no file below the folder"):
        board.restore(**WHERE)
    assert inventory(folder) == content
    listing.write_text(dump_json({"files": ["a..b/events.out.tfevents.1", "..a"]}))
    board.restore(**WHERE)


def test_a_cut_that_is_unfinished_is_as_long_as_can_be(folder: Path) -> None:
    board = TensorBoard(folder)
    assert (board.last_step(), board.last_samples()) == (60, 960)
    (folder / "events.out.sentinel-kept.1").touch()
    assert (board.last_step(), board.last_samples()) == (sys.maxsize, sys.maxsize)


def test_a_file_that_was_kept_whole_counts_again_once_another_has_taken_its_name(folder: Path) -> None:
    last = next(folder.glob("*.b"))
    last.write_bytes(last.read_bytes() + b"garbage of some length")
    board = TensorBoard(folder)
    assert list(board.cut(AT, **WHERE).kept_whole) == [last.name]
    assert board.last_step() == 20
    other = write_file(folder / "new", [scalar(TAG, 45)])
    other.replace(last)
    assert board.last_step() == 45
    last.unlink()
    assert board.last_step() == 20
    board.cut(AT, incident="incident-1", rollback="incident-1-r2")  # a listing of a file that is gone does no harm
    assert TensorBoard(folder).last_step() == 20
