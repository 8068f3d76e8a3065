"""Files that can't be read to their end, or are being written to: kept whole and told; nothing is lost of any."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentinel.adapters.event_files import Spans
from sentinel.adapters.tensorboard import TensorBoard, cutting
from sentinel.vocabulary.overrides import Anchor
from tests.adapters.boards import AT, TAG, WHERE, RecordWriter, axes, inventory, read, three, write, write_file
from tests.adapters.synced import synced

Damage = Callable[[bytes], bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 steps before the cut, 20 that span it, 20 after it."""
    for steps, name in ((range(1, 21), "1.a"), (range(21, 41), "2.b"), (range(41, 61), "3.c")):
        events = [event for step in steps for event in three(step)]
        write_file(tmp_path / "tb" / f"events.out.tfevents.{name}", events)
    return tmp_path / "tb"


def spanning(folder: Path) -> Path:
    return folder / "events.out.tfevents.2.b"


def flipped(at: float) -> Damage:
    def damage(data: bytes) -> bytes:
        place = data.index(b"lm loss", int(len(data) * at))
        return data[:place] + b"LM" + data[place + 2 :]

    return damage


DAMAGED: dict[str, tuple[Damage, str]] = {
    "a flipped bit before the cut": (flipped(0.1), "does not have the checksum"),
    "a flipped bit after the cut": (flipped(0.9), "does not have the checksum"),
    "garbage in the middle": (lambda d: d[:3000] + b"garbage" * 9 + d[3063:], "there is no record at byte"),
    "a hole in the middle": (lambda d: d[:3000] + bytes(500) + d[3500:], "there is no record at byte"),
    "zeros at the end": (lambda d: d[:-100] + bytes(4096), "there is no record at byte"),
    "zeros after the last record": (lambda d: d + bytes(4096), "as a crash of the machine leaves it"),
    "a length that was cut off": (lambda d: d[:3000] + d[3003:], "there is no record at byte"),
    "a record that is no event": (lambda d: d + _record(b"\x0f" * 30), "holds no event"),
}


def _record(data: bytes) -> bytes:
    class Sink(bytearray):
        def write(self, more: bytes) -> None:
            self.extend(more)

    sink = Sink()
    RecordWriter(sink).write(data)
    return bytes(sink)


@pytest.mark.parametrize("what", DAMAGED)
def test_a_file_that_spans_the_cut_and_is_corrupt_is_kept_whole_and_told(folder: Path, what: str) -> None:
    damage, why = DAMAGED[what]
    spanning(folder).write_bytes(damage(spanning(folder).read_bytes()))
    before = inventory(folder)
    board = TensorBoard(folder)
    report = board.cut(AT, **WHERE)
    assert list(report.kept_whole) == [spanning(folder).name]
    assert why in report.sentences()[0]
    assert inventory(folder) == {n: h for n, h in before.items() if ".3." not in n}
    assert not [p for place in folder.parent.glob("tb*") for p in place.rglob("*.sentinel-*")]  # of parts begun
    assert read(folder.with_name("tb-incident-1-r1")) == axes(range(41, 61))  # the others are cut all the same
    board.restore(**WHERE)
    assert inventory(folder) == before


def test_a_cut_that_kept_a_file_whole_is_not_asked_for_again(folder: Path) -> None:
    """Else the plan would have the same cut done for ever; a new process knows it, too, until it is taken back."""
    (folder / "events.out.tfevents.3.c").unlink()
    spanning(folder).write_bytes(DAMAGED["zeros after the last record"][0](spanning(folder).read_bytes()))
    assert TensorBoard(folder).last_step() == 40
    TensorBoard(folder).cut(AT, **WHERE)
    assert TensorBoard(folder).last_step() == 20
    TensorBoard(folder).restore(**WHERE)
    assert TensorBoard(folder).last_step() == 40


def test_corrupt_files_that_do_not_span_the_cut_lie_where_they_lay(folder: Path) -> None:
    first, last = folder / "events.out.tfevents.1.a", folder / "events.out.tfevents.3.c"
    for path in (first, last):
        path.write_bytes(path.read_bytes() + b"garbage of some length")
    before = inventory(folder)
    board = TensorBoard(folder)
    report = board.cut(AT, **WHERE)
    assert list(report.kept_whole) == [first.name]
    assert report.moved == [last.name]
    assert any(last.name in remark for remark in report.remarks)
    assert read(folder) == axes(range(1, 31))
    board.restore(**WHERE)
    assert inventory(folder) == before


def test_a_torn_last_record_is_told_and_kept_with_what_is_cut_off(folder: Path) -> None:
    whole = spanning(folder).read_bytes()
    spanning(folder).write_bytes(whole[:-7])
    board = TensorBoard(folder)
    report = board.cut(AT, **WHERE)
    assert "ends within a record" in report.sentences()[0]
    cut_off = next(folder.with_name("tb-incident-1-r1").glob("*.cut-off")).read_bytes()
    assert cut_off.endswith(whole[-60:-7])
    board.restore(**WHERE)
    assert spanning(folder).read_bytes() == whole[:-7]


def test_a_file_that_is_written_to_while_it_is_read_is_kept_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = b"".join(_record(event.SerializeToString()) for event in three(41))
    real = cutting.part

    def reading(path: Path, at: Anchor, spans: Spans, kept: Path, cut: Path) -> object:
        with path.open("ab") as file:
            file.write(more)
        return real(path, at, spans, kept, cut)

    before = spanning(folder).read_bytes()
    monkeypatch.setattr(cutting, "part", reading)
    with synced(folder.parent):
        report = TensorBoard(folder).cut(AT, **WHERE)
    assert report.kept_whole == {spanning(folder).name: "it is being written to"}
    assert spanning(folder).read_bytes() == before + more
    monkeypatch.undo()
    assert TensorBoard(folder).cut(AT, **WHERE).cut == [spanning(folder).name]  # the writer is gone: it can be cut now
    assert TensorBoard(folder).last_step() == 30


HOLDS_OPEN = "import sys; file = open(sys.argv[1], 'ab'); print('open', flush=True); sys.stdin.read()"


@contextmanager
def holding_open(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    line = [sys.executable, "-c", HOLDS_OPEN, str(path)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        yield writer
        writer.kill()


def named_after(writer: subprocess.Popen[bytes], path: Path) -> Path:
    """The file under a name that says that this process wrote it."""
    name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{writer.pid}.0.b"
    return path.rename(path.with_name(name))


@pytest.mark.parametrize("named", [False, True])
def test_a_file_that_a_living_process_has_open_or_wrote_by_its_name_is_kept_whole(folder: Path, named: bool) -> None:
    """A writer that flushes rarely: nothing of the file changes during the cut."""
    path, other = spanning(folder), folder.parent / "other"
    with holding_open(other if named else path) as writer:
        why = f"process {writer.pid} has it open for writing"
        if named:
            path = named_after(writer, path)
            why = f"process {writer.pid}, which its name says wrote it, is alive"
        before = path.read_bytes()
        report = TensorBoard(folder).cut(AT, **WHERE)
        assert report.kept_whole == {path.name: why}
        assert path.read_bytes() == before
        assert TensorBoard(folder).last_step() == 20  # the same cut is not planned again
    assert TensorBoard(folder).cut(AT, **WHERE).cut == [path.name]


@pytest.mark.parametrize("closed", [False, True])
def test_of_a_process_that_is_parked_only_a_file_that_it_has_open_is_kept_whole(folder: Path, closed: bool) -> None:
    """Its name says that a living process wrote it; where that one is parked, what it has closed is whole."""
    path, other = spanning(folder), folder.parent / "other"
    with holding_open(other if closed else path) as writer:
        path = named_after(writer, path)
        report = TensorBoard(folder).cut(AT, **WHERE, parked=writer.pid)
        why = f"process {writer.pid} has it open for writing"
        assert (report.cut, report.kept_whole) == (([path.name], {}) if closed else ([], {path.name: why}))


def test_a_file_after_the_cut_that_is_written_to_is_kept_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = folder / "events.out.tfevents.3.c"
    real = cutting.part

    def reading(path: Path, at: Anchor, spans: Spans, kept: Path, cut: Path) -> object:
        with last.open("ab") as file:
            file.write(b"the beginning of a record")
        return real(path, at, spans, kept, cut)

    monkeypatch.setattr(cutting, "part", reading)
    report = TensorBoard(folder).cut(AT, **WHERE)
    assert report.kept_whole == {last.name: "it is being written to"}
    assert last.exists()


@pytest.mark.parametrize("rename", range(1, 6))
def test_a_file_that_is_written_to_between_its_reading_and_its_renaming_loses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rename: int
) -> None:
    """The writer holds the file open, and appends just before the Nth rename of the cut, wherever the file is then."""
    real, count = Path.rename, 0
    more = b"".join(_record(event.SerializeToString()) for event in three(41))
    with spanning(folder).open("ab") as writer:

        def appending(self: Path, target: Path) -> Path:
            nonlocal count
            count += 1
            if count == rename:
                writer.write(more)
                writer.flush()
            return real(self, target)

        before = spanning(folder).read_bytes()
        monkeypatch.setattr(Path, "rename", appending)
        report = TensorBoard(folder).cut(AT, **WHERE)
        monkeypatch.undo()
    assert count >= rename
    assert report.sentences()
    assert (spanning(folder).name in report.kept_whole) == (rename < 4)  # from then on it is out of the folder
    grown = [p for p in folder.parent.rglob("*") if p.is_file() and p.read_bytes() == before + more]
    assert len(grown) == 1
    TensorBoard(folder).restore(**WHERE)
    assert spanning(folder).read_bytes() == before + more


def test_a_cut_killed_with_its_parts_written_begins_anew_when_the_file_has_grown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(source: Path, destination: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cutting, "move", dying)
    with pytest.raises(KeyboardInterrupt):
        TensorBoard(folder).cut(AT, **WHERE)
    monkeypatch.undo()
    with spanning(folder).open("ab") as writer:
        writer.write(b"".join(_record(event.SerializeToString()) for event in three(29)))
    before = spanning(folder).read_bytes()
    report = TensorBoard(folder).cut(AT, **WHERE)
    assert report.cut == [spanning(folder).name]
    assert read(folder)[TAG] == sorted([*range(1, 31), 29])
    TensorBoard(folder).restore(**WHERE)
    assert spanning(folder).read_bytes() == before


def test_steps_on_an_axis_that_nobody_knows_are_kept_and_told(tmp_path: Path) -> None:
    write_file(tmp_path / "tb" / "events.out.tfevents.1", [event for n in range(1, 9) for event in three(n)[1:]])
    report = TensorBoard(tmp_path / "tb").cut(Anchor(global_step=4), **WHERE)
    assert "what they are at the target is not known" in report.sentences()[0]
    report = TensorBoard(tmp_path / "tb").cut(Anchor(global_step=0), incident="incident-1", rollback="incident-1-r2")
    assert report.moved == ["events.out.tfevents.1"]  # from scratch: nothing was consumed


def test_a_link_is_told_and_left(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", range(50, 60))
    there = next((tmp_path / "elsewhere").iterdir())
    (folder / there.name).symlink_to(there)
    report = TensorBoard(folder).cut(AT, **WHERE)
    assert "it is a link" in report.kept_whole[there.name]
    assert (folder / there.name).is_symlink()
    assert TensorBoard(folder).last_step() == 30
