"""What a poll remembers of a save folder is what a fresh look finds, after any changes; and a poll makes few calls."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated.checkpoints import make
from sentinel.act.saved_files import SavedFiles
from sentinel.adapters.checkpoints import QUARANTINE, Checkpoints, SaveFolder, SaveFolderSeen
from sentinel.listings import SETTLE_S, Listings

TICK_NS = int(SETTLE_S * 1e9)  # of a filesystem whose clock is as coarse as any
SHARD, MODEL = "zero_pp_rank_{}_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"
STEPS = st.integers(1, 8).map(lambda n: n * 10)


class Disk:
    """A save folder on a filesystem with a clock of its own, which ticks every two seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 1000.0
        self.stamp()

    def stamp(self) -> None:
        """Gives every entry that the last change has touched the time of that filesystem."""
        at_ns = int(self.now_s * 1e9) // TICK_NS * TICK_NS
        for path in (self.folder, *self.folder.rglob("*")):
            if path.stat(follow_symlinks=False).st_mtime_ns > int(1e18):  # the machine's own time
                os.utime(path, ns=(at_ns, at_ns), follow_symlinks=False)

    def tag(self, step: int) -> Path:
        return self.folder / f"global_step{step}"

    def save(self, step: int, ranks: int) -> None:
        """Whole, or one shard more of one that has begun."""
        self.tag(step).mkdir(exist_ok=True)
        (self.tag(step) / MODEL).write_bytes(b"model")
        for rank in range(ranks):
            (self.tag(step) / SHARD.format(rank)).write_bytes(b"shard")

    def begin(self, step: int, _: int) -> None:
        """A shard that is empty yet. One that was whole and is emptied in place shows at a fresh look alone."""
        self.tag(step).mkdir(exist_ok=True)
        (self.tag(step) / SHARD.format(1)).touch()

    def grow(self, step: int, rank: int) -> None:
        """In place: the folder's time stays."""
        for path in sorted(self.tag(step).glob("*.pt"))[: rank + 1]:
            with path.open("ab") as file:
                file.write(b"more")

    def touch(self, step: int, _: int) -> None:
        for path in self.tag(step).glob("*.pt"):
            path.touch()

    def lose(self, step: int, rank: int) -> None:
        (self.tag(step) / SHARD.format(rank)).unlink(missing_ok=True)

    def delete(self, step: int, _: int) -> None:
        shutil.rmtree(self.tag(step), ignore_errors=True)

    def rename(self, step: int, other: int) -> None:
        if self.tag(step).exists() and not self.tag(other * 10).exists():
            self.tag(step).rename(self.tag(other * 10))

    def aside(self, step: int, _: int) -> None:
        room = self.folder / QUARANTINE / f"incident-{step}"
        room.mkdir(parents=True, exist_ok=True)
        if self.tag(step).exists() and not (room / f"global_step{step}").exists():
            self.tag(step).rename(room / f"global_step{step}")

    def back(self, step: int, _: int) -> None:
        aside = self.folder / QUARANTINE / f"incident-{step}" / f"global_step{step}"
        if aside.exists() and not self.tag(step).exists():
            aside.rename(self.tag(step))

    def point(self, step: int, _: int) -> None:
        """In place, as some trainers write it."""
        (self.folder / "latest").write_text(f"global_step{step}")


CHANGES: tuple[Callable[[Disk, int, int], None], ...] = (
    Disk.save, Disk.save, Disk.begin, Disk.grow, Disk.touch, Disk.lose, Disk.delete, Disk.rename, Disk.aside, Disk.back,
    Disk.point,
)  # fmt: skip
A_CHANGE = st.tuples(st.sampled_from(CHANGES), STEPS, st.integers(0, 4), st.sampled_from([0.0, 0.5, 1.9, 2.0, 5.0]))


Change = tuple[Callable[[Disk, int, int], None], int, int, float]


def made(there: Disk, changes: list[Change]) -> None:
    for change, step, number, later_s in changes:
        change(there, step, number)
        there.stamp()
        there.now_s += later_s


def fresh(disk: Disk) -> SaveFolderSeen:
    return Checkpoints(disk.folder).look(fresh=True)


@contextmanager
def disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as name:
        yield Disk(Path(name))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(A_CHANGE, max_size=4), max_size=10))
def test_once_all_was_asked_for_in_turn_what_is_remembered_is_what_a_fresh_look_finds(
    polls: list[list[Change]],
) -> None:
    with disk() as there:
        remembered = Checkpoints(there.folder, clock=lambda: there.now_s)
        for changes in polls:
            made(there, changes)
            remembered.look()
        for _ in range(3):  # eight checkpoints at most, four of them in each turn
            there.now_s += 5.0
            seen = remembered.look()
        assert seen == fresh(there)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(A_CHANGE, max_size=3), max_size=10))
def test_every_poll_sees_what_came_what_went_what_latest_says_and_the_newest_two(
    polls: list[list[Change]],
) -> None:
    with disk() as there:
        remembered = Checkpoints(there.folder, clock=lambda: there.now_s)
        for changes in polls:
            made(there, changes)
            seen, now = remembered.look(), fresh(there)
            assert [c.tag for c in seen.checkpoints] == [c.tag for c in now.checkpoints]
            newest = [c.problem for c in seen.checkpoints[-2:]], [c.problem for c in now.checkpoints[-2:]]
            assert newest[0] == newest[1]
            assert (seen.latest, seen.incidents) == (now.latest, now.incidents)


def test_a_change_within_the_tick_of_the_last_one_is_seen(tmp_path: Path) -> None:
    now_s, listings = [0.0], Listings(lambda: now_s[0])
    os.utime(tmp_path, (500.0, 500.0))
    assert (listing := listings.of(tmp_path)) is not None
    assert not listing.kinds
    (tmp_path / "one").touch()
    os.utime(tmp_path, (500.0, 500.0))
    now_s[0] = SETTLE_S - 0.1
    assert (listing := listings.of(tmp_path)) is not None
    assert [*listing.kinds] == ["one"]


def settled(folder: Path, steps: range) -> tuple[Disk, Checkpoints]:
    """Checkpoints of these steps that several polls have found whole."""
    there = Disk(folder)
    for step in steps:
        there.save(step, 2)
    there.stamp()
    remembered = Checkpoints(folder, clock=lambda: there.now_s)
    for _ in range(3):
        there.now_s += 5.0
        assert all(c.complete for c in remembered.look().checkpoints)
    return there, remembered


def test_what_changes_again_within_the_tick_of_its_last_change_is_seen_in_every_checkpoint(tmp_path: Path) -> None:
    there = Disk(tmp_path)
    for step in range(10, 200, 10):
        there.save(step, 2)
    there.stamp()
    remembered = Checkpoints(tmp_path, clock=lambda: there.now_s)
    assert all(c.complete for c in remembered.look().checkpoints)
    there.lose(100, 1)
    there.stamp()  # the folder's time is what it was
    there.now_s += 5.0
    assert [c.tag for c in remembered.look().checkpoints if not c.complete] == ["global_step100"]


def test_a_fresh_look_sees_what_no_time_tells(tmp_path: Path) -> None:
    there, remembered = settled(tmp_path, range(10, 50, 10))
    (there.tag(10) / SHARD.format(0)).write_bytes(b"")
    assert [c.complete for c in remembered.look(fresh=True).checkpoints] == [False, True, True, True]
    assert remembered.list() == remembered.look(fresh=True).checkpoints


def test_another_folder_under_an_old_name_is_looked_at_by_the_next_poll(tmp_path: Path) -> None:
    there, remembered = settled(tmp_path, range(10, 200, 10))
    there.begin(500, 0)
    shutil.rmtree(there.tag(100))
    there.tag(500).rename(there.tag(100))
    there.now_s += 5.0
    there.stamp()
    assert [c.tag for c in remembered.look().checkpoints if not c.complete] == ["global_step100"]


def test_the_file_that_is_written_is_found_at_once_by_a_full_look_and_within_a_minute_by_polls(tmp_path: Path) -> None:
    there, now_s = Disk(tmp_path), [0.0]
    there.save(10, 20)
    there.save(20, 20)
    for n, path in enumerate(sorted(tmp_path.rglob("*.pt"))):
        os.utime(path, (1000.0 + n, 1000.0 + n))
    saved = SavedFiles(SaveFolder(tmp_path, clock=lambda: now_s[0]), clock=lambda: now_s[0])
    assert saved.newest() == max(tmp_path.rglob("*.pt"))
    followed, other = sorted(tmp_path.rglob("*.pt"))[-3], min(tmp_path.rglob("*.pt"))
    os.utime(followed, (2000.0, 2000.0))  # written in place: no folder's time changes
    assert saved.newest() == followed
    os.utime(other, (3000.0, 3000.0))
    assert saved.newest(fresh=True) == other
    os.utime(sorted(tmp_path.rglob("*.pt"))[1], (4000.0, 4000.0))
    now_s[0] = 61.0
    assert saved.newest() == sorted(tmp_path.rglob("*.pt"))[1]


def test_a_save_that_begins_is_found_by_the_next_poll(tmp_path: Path) -> None:
    there, now_s = Disk(tmp_path), [0.0]
    there.save(10, 2)
    saved = SavedFiles(SaveFolder(tmp_path, clock=lambda: now_s[0]), clock=lambda: now_s[0])
    assert saved.newest() is not None
    there.begin(20, 0)
    new = there.tag(20) / SHARD.format(1)
    later_s = new.stat().st_mtime + 10
    os.utime(new, (later_s, later_s))
    assert saved.newest() == new


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Calls of the os module that ask a filesystem, by name."""
    found: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def made(*arguments: object, **named: object) -> object:
            found[name] += 1
            return call(*arguments, **named)

        return made

    with monkeypatch.context() as patched:
        for name in ("open", "stat", "lstat", "scandir", "listdir", "readlink", "fstat"):
            patched.setattr(os, name, counting(name))
        yield found


@pytest.mark.parametrize(("checkpoints", "files"), [(5, 600), (400, 8)])
def test_a_poll_of_a_save_folder_makes_few_calls_whatever_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: int, files: int
) -> None:
    make(tmp_path, checkpoints, files)
    for number in range(1, checkpoints + 1):
        os.utime(tmp_path / f"global_step{number * 100}", (1e9 + 60 * number, 1e9 + 60 * number))
    now_s = [0.0]
    seen = Checkpoints(tmp_path, clock=lambda: now_s[0])
    with counted(monkeypatch) as first:
        seen.look()
    now_s[0] = 5.0
    seen.look()
    now_s[0] = 10.0
    with counted(monkeypatch) as later:
        assert len(seen.look().checkpoints) == checkpoints
    assert first.total() > 2 * checkpoints
    assert 5 < later.total() <= 40


def test_event_files_below_the_checkpoints_are_no_sign_that_a_trainer_writes(tmp_path: Path) -> None:
    """As of Hugging Face's Trainer, whose `runs/` is below its `output_dir`: a rollback cuts them."""
    board, shard = tmp_path / "runs" / "a" / "events.out.tfevents.1.host", tmp_path / "checkpoint-10" / "model.pt"
    for path, at in ((shard, 1000), (board, 2000)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, (at, at))
    assert SavedFiles(SaveFolder(tmp_path)).newest(fresh=True) == board
    assert SavedFiles(SaveFolder(tmp_path), except_for=tmp_path / "runs").newest(fresh=True) == shard
