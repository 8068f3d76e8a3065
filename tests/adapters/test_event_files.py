"""Event files of any records: read as TensorBoard's own protobuf reads them, and parted without losing one."""

from __future__ import annotations

import io
import math
import os
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.event_files import frames
from sentinel.adapters.event_files.events import Axis, axis_of, fields_of, read_events
from sentinel.adapters.event_files.frames import EventFile, Problem, Stretch
from sentinel.adapters.event_files.scalars import ScalarFile, is_event_file
from sentinel.adapters.event_files.spans import Index, Side, Spans, part
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.overrides import Anchor
from tests.adapters.boards import TAG, WHERE, Event, RecordWriter, inventory, records, scalar, write_file

STEPS = st.one_of(
    st.integers(0, 60), st.sampled_from([-1, 0, 127, 128, 2**14 - 1, 2**14, 2**31, 2**49, 2**56, 2**63 - 1, -(2**63)])
)
TAGS = st.sampled_from(
    (
        *(
            "lm loss",
            "lm loss vs samples",
            "lm loss vs tokens",
            "vs samples",
            "s vs tokens",
            " vs samples",
            "x=samples",
        ),
        *(
            "y/y=steps,x=samples",
            "y/y=samples,x=steps",
            "y/y=steps,x=tokens",
            "lm loss vs gigaflos",
            "é vs samples",
            "",
        ),
        *("Train/Samples/lr", "Train/Sample", "Train/Eigenvalues/a", "a" * 120, "b" * 119 + " vs tokens", "\0" * 9),
    )
)


VALUES = [*(0.0, 1.0, 30.0, 0.5, -1.0, math.nan, math.inf, 1e30), *(2.0**24 - 1, 2.0**24, 2.0**24 + 2)]


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event that a writer of TensorBoard's may write, and some that none does."""
    event = Event(wall_time=draw(st.sampled_from([0.0, 1.7e9])), step=draw(STEPS))
    kind = draw(
        st.sampled_from(
            ["scalar"] * 6 + ["several", "bare", "histogram", "tensor", "text", "session", "version", "graph"]
        )
    )
    if kind == "session":
        event.session_log.status = draw(st.sampled_from([1, 2]))
    elif kind == "version":
        event.file_version = "brain.Event:2"
    elif kind == "graph":
        event.graph_def = draw(st.binary(max_size=400))
    else:
        value = event.summary.value.add(tag=draw(TAGS))
        if kind in ("scalar", "several"):
            value.simple_value = draw(st.sampled_from(VALUES))
        if kind == "several":
            event.summary.value.add(tag=draw(TAGS), simple_value=1)
        if kind == "histogram":
            value.histo.bucket.extend([draw(st.sampled_from([0.0, 1.0, 0.1]))] * draw(st.integers(0, 90)))
        if kind == "tensor":
            value.tensor.float_val.append(0.5)
            value.metadata.plugin_data.plugin_name = "scalars"
        if kind == "text":
            value.tensor.string_val.append(draw(st.binary(max_size=300)))
    return event


def framed(written: list[Event]) -> bytes:
    sink = io.BytesIO()
    writer = RecordWriter(sink)
    for event in written:
        writer.write(event.SerializeToString())
    return sink.getvalue()


def axis(event: Event) -> Axis:
    if event.summary.value:
        return axis_of(event.summary.value[0].tag)
    return Axis.SESSION if event.HasField("session_log") else Axis.NONE


def iteration(event: Event) -> int:
    """The iteration that it says it belongs to: as its step, or as the value of Megatron's y=steps."""
    if axis(event) is Axis.ITERATION:
        return int(event.step)
    values = event.summary.value
    plain = len(values) == 1 and values[0].HasField("simple_value") and event.wall_time and 0 <= event.step < 2**56
    if plain and "y=steps" in values[0].tag and 0 <= values[0].simple_value < 2**24:
        return int(values[0].simple_value) if values[0].simple_value.is_integer() else -1
    return -1


def stretches(data: bytes, of_bytes: int) -> tuple[list[Stretch], EventFile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_STRETCH_BYTES", of_bytes)
        file = EventFile(io.BytesIO(data))
        return list(file.stretches()), file


@settings(max_examples=300, deadline=None)
@given(st.lists(events(), max_size=30), st.sampled_from([13, 100, 1000, 1 << 20]))
def test_records_are_read_as_tensorboards_own_protobuf_reads_them(written: list[Event], of_bytes: int) -> None:
    found, file = stretches(framed(written), of_bytes)
    assert file.problem is None
    seen, iterations = [], []
    for stretch in found:
        assert not len(stretch.bad_checksums())
        read, problem = read_events(stretch)
        assert problem is None
        raw = [stretch.data[a + 12 : b - 4] for a, b in zip(stretch.starts, stretch.ends, strict=True)]
        seen += zip(raw, read.steps.tolist(), read.axes.tolist(), strict=True)
        iterations += read.iterations.tolist()
    assert seen == [(event.SerializeToString(), event.step, axis(event)) for event in written]
    assert iterations == [iteration(event) for event in written]


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), min_size=1, max_size=10), st.data())
def test_a_flipped_bit_is_seen(written: list[Event], data: st.DataObject) -> None:
    octets = bytearray(framed(written))
    octets[data.draw(st.integers(0, len(octets) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found, file = stretches(bytes(octets), 1 << 20)
    assert file.problem is not None or any(len(stretch.bad_checksums()) for stretch in found)


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), min_size=1, max_size=10), st.data())
def test_a_file_that_ends_anywhere_is_read_to_its_last_whole_record(written: list[Event], data: st.DataObject) -> None:
    whole = framed(written)
    ends = np.cumsum([0] + [len(event.SerializeToString()) + 16 for event in written]).tolist()
    length = data.draw(st.integers(0, len(whole)))
    found, file = stretches(whole[:length], data.draw(st.sampled_from([13, 1 << 20])))
    assert file.at == max(end for end in ends if end <= length)
    assert (file.problem is None) == (length in ends)
    assert file.problem is None or file.problem.torn
    assert sum(len(stretch.starts) for stretch in found) == ends.index(file.at)


def test_a_record_that_holds_an_event_file_is_one_record() -> None:
    """Its headers lie where no record begins."""
    within = framed([Event(step=n, wall_time=1.7e9) for n in range(50)])
    holder = Event(step=3)
    holder.summary.value.add(tag="file").tensor.string_val.append(within)
    written = [Event(step=1), holder, Event(step=2)]
    found, file = stretches(framed(written), 1 << 20)
    assert [step for stretch in found for step in read_events(stretch)[0].steps.tolist()] == [1, 3, 2]
    assert file.problem is None
    ends = [len(framed(written[:n])) for n in range(4)]
    for length in range(ends[1], ends[3]):  # also where it ends within the one that is held
        found, file = stretches(framed(written)[:length], 1 << 20)
        assert file.at == max(end for end in ends if end <= length)
        assert sum(len(stretch.starts) for stretch in found) == ends.index(file.at)


def with_header(length: int, data: bytes) -> bytes:
    """A record's beginning that says so many bytes."""
    header = struct.pack("<Q", length)
    return header + struct.pack("<I", frames._checksum(header)) + data


def large(size: int) -> bytes:
    """A record that holds a graph of so many bytes; TensorBoard's own writer takes seconds for it."""
    data = Event(step=7, graph_def=bytes(size)).SerializeToString()
    return with_header(len(data), data) + struct.pack("<I", frames._checksum(data))


@pytest.mark.parametrize("size", [1 << 20, (1 << 24) + 7])
def test_a_large_record_is_read_whole(size: int) -> None:
    assert large(9) == framed([Event(step=7, graph_def=bytes(9))])
    found, file = stretches(framed([Event(step=1)]) + large(size) + framed([Event(step=2)]), 1 << 16)
    assert [step for stretch in found for step in read_events(stretch)[0].steps.tolist()] == [1, 7, 2]
    assert file.problem is None


ANCHORS = st.builds(
    Anchor,
    global_step=st.integers(0, 60),
    consumed_samples=st.none() | st.integers(0, 60),
    consumed_tokens=st.none() | st.integers(0, 60),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(events(), max_size=20), min_size=1, max_size=4), ANCHORS)
def test_any_records_cut_anywhere_are_in_one_of_the_two_and_come_back(files: list[list[Event]], at: Anchor) -> None:
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / "tb"
        for number, written in enumerate(files):
            write_file(folder / f"events.out.tfevents.{number}", written)
        before, bytes_before = Counter(records(folder)), inventory(folder)
        board = TensorBoard(folder)
        report = board.cut(at, **WHERE)
        live, gone = Counter(records(folder)), Counter(records(folder.with_name("tb-incident-1-r1")))
        tagged = {raw for raw in before if Event.FromString(raw).summary.value}
        for raw, times in before.items():
            if raw in tagged or Event.FromString(raw).HasField("session_log"):
                assert live[raw] + gone[raw] == times
            else:
                assert max(live[raw], gone[raw]) <= times <= live[raw] + gone[raw]
        assert not (live.keys() | gone.keys()) - before.keys()
        if not report.kept_whole:
            assert not any(_is_past(raw, at) for raw in live if raw in tagged)
            assert all(_may_be_past(raw, at) for raw in gone if raw in tagged)
        assert board.last_step() <= at.global_step
        board.restore(**WHERE)
        assert inventory(folder) == bytes_before


def _is_past(raw: bytes, at: Anchor) -> bool:
    event = Event.FromString(raw)
    limit = _limit(axis(event), at)
    return limit is not None and event.step > limit


def _may_be_past(raw: bytes, at: Anchor) -> bool:
    return _limit(axis(Event.FromString(raw)), at) is None or _is_past(raw, at)


def _limit(on: Axis, at: Anchor) -> int | None:
    limit = {Axis.ITERATION: at.global_step, Axis.SAMPLES: at.consumed_samples, Axis.TOKENS: at.consumed_tokens}.get(on)
    return 0 if limit is None and at.global_step == 0 else limit


# Where records begin and end


def test_ordinary_records_are_found_without_walking_from_one_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are a hundred million of them. Whatever ends where a stretch does, or is torn."""
    written = [scalar("lm loss" + "x" * (step % 50), step) for step in range(400)]
    data = framed(written)
    ends = np.cumsum([0] + [len(event.SerializeToString()) + 16 for event in written]).tolist()

    def walked(_: bytes) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr(frames, "_by_walking", walked)
    for length in (ends[1], ends[3], ends[400], *range(ends[300] + 1, ends[302])):
        found, file = stretches(data[:length], 1 << 20)
        assert file.at == max(end for end in ends if end <= length)
        assert sum(len(stretch.starts) for stretch in found) == ends.index(file.at)
    for size in (300, 70_000):  # a length of two bytes, and of three
        (stretch,), file = stretches(large(size) * 3, 1 << 20)
        assert (len(stretch.starts), file.problem) == (3, None)


def test_records_are_found_by_walking_as_well_as_by_their_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    data, ends = framed([scalar("lm loss", step) for step in range(3)]), []
    lengths = range(len(data) + 1)
    by_pattern = [stretches(data[:length], 1 << 20) for length in lengths]
    monkeypatch.setattr(frames, "_by_pattern", lambda _: None)
    for length, (found, file) in zip(lengths, by_pattern, strict=True):
        walked, other = stretches(data[:length], 1 << 20)
        assert (file.at, file.problem) == (other.at, other.problem)
        assert [s.ends.tolist() for s in found] == [s.ends.tolist() for s in walked]
        ends += [end for s in walked for end in s.ends.tolist()]
    assert max(ends) == len(data)


def test_an_empty_record_is_a_record() -> None:
    for written in ([Event(step=1), Event(), Event(step=2)], [Event(step=1), Event()], [Event()]):
        found, file = stretches(framed(written), 1 << 20)
        assert sum(len(stretch.starts) for stretch in found) == len(written)
        assert file.problem is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"garbage" + framed([Event(step=1)]), Problem(at=0, what="there is no record at byte 0")),
        (
            framed([Event(step=1)]) + bytes(12),
            Problem(at=18, what="there is no record at byte 18 (zeros: as a crash of the machine leaves it)"),
        ),
        (
            framed([Event(step=1)]) + bytes(11),
            Problem(at=18, what="it ends within a record, 11 bytes of it", torn=True),
        ),
        (framed([Event(step=1)]) + b"\1" + bytes(11), Problem(at=18, what="there is no record at byte 18")),
        (
            with_header((1 << 26) + 1, b"x"),
            Problem(at=0, what="the record at byte 0 has 67108865 bytes: the limit is 64 MiB"),
        ),
        (with_header(1 << 26, b"x"), Problem(at=0, what="it ends within a record, 13 bytes of it", torn=True)),
    ],
)
def test_what_ends_the_reading_is_told_with_its_place(data: bytes, problem: Problem) -> None:
    found, file = stretches(data, 1 << 20)
    assert file.problem == problem
    assert file.at == problem.at == sum(int(stretch.ends[-1]) for stretch in found)


class Noted(io.BytesIO):
    """A file that notes how much of it was asked for at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.asked: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        self.asked.append(-1 if size is None else size)
        return super().read(size)


def test_a_file_is_read_a_megabyte_at_a_time_or_one_record_and_no_memory_is_asked_for_in_vain() -> None:
    ordinary = Noted(framed([scalar("lm loss", step) for step in range(30_000)]))
    assert len(list(EventFile(ordinary).stretches())) == 2
    assert set(ordinary.asked) == {1 << 20}
    record = large(3 << 20)
    whole = Noted(record)
    assert [len(stretch.data) for stretch in EventFile(whole).stretches()] == [len(record)]
    assert whole.asked == [1 << 20, len(record) - (1 << 20), 1 << 20]
    for there in (len(record) - 1, (2 << 20) + 5):
        torn = Noted(record[:there])
        file = EventFile(torn)
        assert list(file.stretches()) == []
        assert file.problem == Problem(at=0, what=f"it ends within a record, {there} bytes of it", torn=True)
        assert torn.asked == [1 << 20]


def test_a_bad_checksum_is_told_by_the_number_of_its_record() -> None:
    written = [scalar("lm loss", step) for step in range(10)]
    data, size = bytearray(framed(written)), len(framed(written[1:2]))
    assert stretches(bytes(data), 1 << 20)[0][0].bad_checksums().tolist() == []
    for number in (9, 4):
        data[len(framed(written[:number])) + size - 8] ^= 1
        (stretch,) = stretches(bytes(data), 1 << 20)[0]
        assert stretch.bad_checksums()[0] == number


def test_an_event_file_begins_with_a_whole_record() -> None:
    whole = framed([Event(step=1)])
    assert is_event_file(io.BytesIO(whole))
    assert not is_event_file(io.BytesIO(whole[:-1]))
    assert not is_event_file(io.BytesIO(b""))


# Events


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"", []),
        (b"\x10\x07", [(2, 7)]),
        (b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", [(2, 2**64 - 1)]),
        (b"\x09" + bytes(8), [(1, bytes(8))]),
        (b"\x15" + bytes(4) + b"\x10\x01", [(2, bytes(4)), (2, 1)]),
        (b"\x2a\x02ab\x10\x01", [(5, b"ab"), (2, 1)]),
        (b"\x2a\x00", [(5, b"")]),
        (b"\x10", None),  # no number
        (b"\x10\x80", None),  # half of one
        (b"\x10" + b"\x80" * 10 + b"\x01", None),  # of more than 64 bits
        (b"\x2a\x03ab", None),  # longer than what there is
        (b"\x09" + bytes(7), None),
        (b"\x15" + bytes(3), None),
        (b"\x0b", None),  # a group, which protobuf has given up
        (b"\x0f", None),
    ],
)
def test_a_messages_fields_are_read_or_it_is_none(data: bytes, fields: list[tuple[int, object]] | None) -> None:
    if fields is None:
        with pytest.raises((IndexError, ValueError)):
            list(fields_of(data))
    else:
        assert list(fields_of(data)) == fields


def raw_framed(*raw: bytes) -> bytes:
    sink = io.BytesIO()
    writer = RecordWriter(sink)
    for data in raw:
        writer.write(data)
    return sink.getvalue()


NO_EVENT = b"\x0f" * 30


@pytest.mark.parametrize("of_bytes", [13, 1 << 20])
def test_a_record_that_is_no_event_is_told_with_its_place(of_bytes: int) -> None:
    events_before = [scalar("lm loss", step).SerializeToString() for step in range(5)]
    data = raw_framed(*events_before, NO_EVENT, *events_before)
    at = len(raw_framed(*events_before))
    found, _ = stretches(data, of_bytes)
    steps, problems = [], []
    for stretch in found:
        read, problem = read_events(stretch)
        steps += read.steps.tolist()
        assert len(read.axes) == len(read.iterations) == len(read.steps)
        problems += [problem] if problem else []
    assert problems == [Problem(at=at, what=f"the record at byte {at} holds no event")]
    assert steps[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"\x08\x05\x10\x07", (7, Axis.NONE)),  # a time that is no double
        (b"\x12\x01\x07", (0, Axis.NONE)),  # a step that is no number
        (b"\x10\x07\x18\x09", (7, Axis.NONE)),  # a number that is no step
        (b"\x28\x07\x10\x07", (7, Axis.NONE)),  # a summary that is none
        (b"\x10\x07\x2a\x02\x08\x01", (7, Axis.NONE)),  # a value that is none
        (b"\x10\x07\x2a\x04\x0a\x02\x08\x01", (7, Axis.ITERATION)),  # a tag that is none
        (b"\x10\x07\x3a\x02\x08\x01", (7, Axis.SESSION)),
        (
            b"\x10\x07\x3a\x00" + Event(summary={"value": [{"tag": "a vs tokens"}]}).SerializeToString(),
            (7, Axis.TOKENS),
        ),
    ],
)
def test_fields_of_another_kind_than_an_events_are_passed_over(raw: bytes, found: tuple[int, Axis]) -> None:
    (stretch,), _ = stretches(raw_framed(raw), 1 << 20)
    read, problem = read_events(stretch)
    assert problem is None
    assert (read.steps.tolist(), read.axes.tolist()) == ([found[0]], [found[1]])
    assert ScalarFile(io.BytesIO(raw_framed(raw)), {}).problem is None


# Parting


def spans_of(path: Path) -> Spans:
    return Spans(inode=0, size=0, mtime_ns=0).extended(path)


def sides(written: list[Event], at: Anchor) -> tuple[list[bytes], list[bytes]]:
    """What stays and what goes, event by event, as the rules say."""
    said = next((n for n in map(iteration, written) if n >= 0), 0)
    stays, goes = [], []
    for event in written:
        raw, on, now = event.SerializeToString(), axis(event), iteration(event)
        said = now if now >= 0 else said
        limit = at.global_step if on is Axis.SESSION else _limit(on, at)
        if on is Axis.NONE or (event.step <= limit if limit is not None else said <= at.global_step):
            stays.append(raw)
        if on is Axis.NONE or raw not in stays[-1:]:
            goes.append(raw)
    return stays, goes


@settings(max_examples=300, deadline=None)
@given(st.lists(events(), max_size=25), ANCHORS, st.sampled_from([13, 200, 1 << 20]))
def test_each_record_goes_where_its_own_axis_or_the_iterations_around_it_say(
    written: list[Event], at: Anchor, of_bytes: int
) -> None:
    for number, event in enumerate(written):
        event.wall_time = 1.7e9 + number  # so that no two are alike
    with tempfile.TemporaryDirectory() as room, pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_STRETCH_BYTES", of_bytes)
        path, kept, cut = (Path(room) / name for name in ("events", "kept", "cut"))
        path.write_bytes(framed(written))
        parted = part(path, at, spans_of(path), kept, cut)
        assert parted == (path.stat().st_size, None)
        assert (kept.read_bytes(), cut.read_bytes()) == tuple(raw_framed(*raw) for raw in sides(written, at))


@pytest.mark.parametrize("damaged", [0, 3, 4, 6, 7])
@pytest.mark.parametrize("no_event", [4, None])
def test_a_file_that_is_damaged_is_not_parted_and_the_first_damage_is_told(
    tmp_path: Path, damaged: int, no_event: int | None
) -> None:
    raw = [scalar("lm loss", step).SerializeToString() for step in range(8)]
    if no_event is not None:
        raw[no_event] = NO_EVENT
    data, at = bytearray(raw_framed(*raw)), len(raw_framed(*raw[:damaged]))
    data[at + 20] ^= 1
    path = tmp_path / "events"
    path.write_bytes(data)
    size, problem = part(path, Anchor(global_step=3), spans_of(path), tmp_path / "kept", tmp_path / "cut")
    assert size == 0
    assert problem is not None
    assert not problem.torn
    if no_event is not None and no_event < damaged:
        assert problem.what.endswith("holds no event")
    else:
        what = f"the record at byte {at} does not have the checksum written with it"
        assert problem == Problem(at=at, what=what)


@pytest.mark.parametrize("lacks", [1, 5, 40])
def test_a_torn_end_goes_with_what_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: int) -> None:
    fsync, on_disk = os.fsync, []

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        on_disk.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", noted)
    written = [scalar("lm loss", step) for step in range(8)]
    path, kept, cut = (tmp_path / name for name in ("events", "kept", "cut"))
    path.write_bytes(framed(written)[:-lacks])
    size, problem = part(path, Anchor(global_step=3), spans_of(path), kept, cut)
    assert size == path.stat().st_size
    assert problem is not None
    assert problem.torn
    assert kept.read_bytes() == framed(written[:4])
    assert cut.read_bytes() == framed(written[4:])[:-lacks]
    assert on_disk == [kept.stat().st_size, cut.stat().st_size]


# Where a file lies


ITERATION, SAMPLES, TOKENS, OTHER = Axis.ITERATION, Axis.SAMPLES, Axis.TOKENS, Axis.OTHER
AT_30 = Anchor(global_step=30, consumed_samples=300, consumed_tokens=3000)


@pytest.mark.parametrize(
    ("reached", "at", "side"),
    [
        ({}, AT_30, Side.BEFORE),
        ({ITERATION: (1, 30)}, AT_30, Side.BEFORE),
        ({ITERATION: (1, 31)}, AT_30, Side.STRADDLES),
        ({ITERATION: (30, 99)}, AT_30, Side.STRADDLES),
        ({ITERATION: (31, 99)}, AT_30, Side.AFTER),
        ({SAMPLES: (1, 300)}, AT_30, Side.BEFORE),
        ({SAMPLES: (301, 301)}, AT_30, Side.AFTER),
        ({TOKENS: (300, 3001)}, AT_30, Side.STRADDLES),
        ({ITERATION: (31, 99), SAMPLES: (300, 990)}, AT_30, Side.STRADDLES),
        ({ITERATION: (31, 99), SAMPLES: (301, 990), TOKENS: (3001, 9900)}, AT_30, Side.AFTER),
        ({ITERATION: (1, 30), SAMPLES: (1, 301)}, AT_30, Side.STRADDLES),
        ({OTHER: (1, 2)}, AT_30, Side.UNKNOWN),
        ({OTHER: (1, 2), SAMPLES: (1, 2)}, AT_30, Side.UNKNOWN),
        ({OTHER: (1, 2), ITERATION: (1, 2)}, AT_30, Side.BEFORE),
        ({SAMPLES: (1, 2)}, Anchor(global_step=30), Side.UNKNOWN),
        ({SAMPLES: (1, 2), ITERATION: (31, 32)}, Anchor(global_step=30), Side.AFTER),
        ({OTHER: (1, 2), TOKENS: (1, 2)}, Anchor(global_step=0), Side.AFTER),
        ({OTHER: (0, 0)}, Anchor(global_step=0), Side.BEFORE),
        ({SAMPLES: (1, 5)}, Anchor(global_step=0, consumed_samples=5), Side.BEFORE),
        ({TOKENS: (1, 5)}, Anchor(global_step=0, consumed_tokens=5), Side.BEFORE),
    ],
)
def test_a_file_lies_where_all_its_axes_lie(reached: dict[Axis, tuple[int, int]], at: Anchor, side: Side) -> None:
    assert Spans(inode=0, size=0, mtime_ns=0, reached=reached).side(at) is side


def test_a_file_reaches_as_far_as_its_smallest_and_largest_steps(tmp_path: Path) -> None:
    steps = [(f"{TAG} vs samples", 9), (TAG, 0), (TAG, 7), (f"{TAG} vs samples", 4), (TAG, 3), (TAG, -2)]
    told = [scalar(tag, step) for tag, step in steps]
    path = write_file(tmp_path / "events", [Event(step=99, file_version="brain.Event:2"), *told, Event(step=-99)])
    found = spans_of(path)
    assert found.reached == {ITERATION: (-2, 7), SAMPLES: (4, 9)}
    assert [found.last(on) for on in (ITERATION, SAMPLES, TOKENS)] == [7, 9, 0]
    assert found.first_iteration == 0
    assert (found.read, found.problem, found.is_of(path.stat())) == (path.stat().st_size, None, True)
    before = write_file(tmp_path / "before", [scalar(TAG, -5), scalar(f"{TAG} vs samples", 4)])
    assert (spans_of(before).first_iteration, spans_of(before).last(ITERATION)) == (None, 0)
    with path.open("ab") as file:
        file.write(framed([scalar(TAG, 5), scalar(f"{TAG} vs tokens", 5)]))
    assert not found.is_of(path.stat())
    grown = found.extended(path)
    assert grown.reached == {ITERATION: (-2, 7), SAMPLES: (4, 9), TOKENS: (5, 5)}
    assert grown.first_iteration == 0
    with path.open("ab") as file:
        file.write(framed([scalar(TAG, 20)]))
    assert grown.extended(path).reached[ITERATION] == (-2, 20)


def opened_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where files are read from, from now on."""
    seen: list[int] = []

    class Noting(EventFile):
        def __init__(self, file: io.BufferedReader, at: int = 0) -> None:
            seen.append(at)
            super().__init__(file, at)

    monkeypatch.setattr("sentinel.adapters.event_files.spans.EventFile", Noting)
    return seen


def test_a_file_is_read_on_from_where_it_was_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged one too: each look reads what is new, however large the rest is."""
    path, seen, index = tmp_path / "events", opened_at(monkeypatch), Index()
    whole = framed([scalar(TAG, step) for step in range(1, 5)])
    for content, reads in (
        (whole, [0]),
        (whole, []),
        (whole + whole[:9], [len(whole)]),  # torn
        (whole * 2, [len(whole)]),
        (whole * 2 + b"garbage of some length", [2 * len(whole), 0]),  # it might be another file
        (whole * 2 + b"garbage of some length, and more", [2 * len(whole)]),
        (whole, [0]),  # shorter: written anew
        (bytes(100), [0]),
        (bytes(200), [0]),
    ):
        if reads:
            path.write_bytes(content)
        assert index.of("events", path).last(ITERATION) == (0 if content[:1] == b"\0" else 4)
        assert seen == reads
        seen.clear()


def test_a_file_that_was_written_anew_in_its_place_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, index = tmp_path / "events", opened_at(monkeypatch), Index()
    path.write_bytes(framed([scalar(TAG, step) for step in range(1, 5)]))
    index.of("events", path)
    path.write_bytes(framed([scalar("another", step) for step in range(1, 50)]))
    assert index.of("events", path).last(ITERATION) == 49
    assert seen == [0, len(framed([scalar(TAG, step) for step in range(1, 5)])), 0]
    size = path.stat().st_size
    path.write_bytes(framed([scalar("another", step) for step in range(51, 100)]))
    os.utime(path, ns=(0, 10**18))
    assert path.stat().st_size == size
    assert index.of("events", path).last(ITERATION) == 99


def test_an_index_is_written_down_again_for_what_was_read_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, more = (framed([scalar(TAG, step) for step in steps]) for steps in (range(1, 9), range(9, 13)))
    monkeypatch.setattr("sentinel.adapters.event_files.spans._SAVE_AFTER_BYTES", len(more) + 1)
    path, file = tmp_path / "events", tmp_path / "state" / "deep" / "index.json"
    index, written = Index(file), []
    for content in (begun, begun + more, begun + 2 * more, begun + 3 * more):
        path.write_bytes(content)
        index.of("events", path)
        index.keep({"events"})
        written.append(file.exists())
        file.unlink(missing_ok=True)
    assert written == [True, False, True, False]


def test_what_was_written_down_is_used_while_the_file_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.adapters.event_files.spans._SAVE_AFTER_BYTES", 1)
    path, file = tmp_path / "events", tmp_path / "index.json"
    path.write_bytes(framed([scalar(TAG, 3)]) + b"garbage of some length")
    index = Index(file)
    found = index.of("events", path)
    index.keep({"events"})
    seen = opened_at(monkeypatch)
    assert Index(file).of("events", path) == found
    assert seen == []
    again = Index(file)
    again.keep(set())  # the file is gone
    again.of("events", path)
    assert seen == [0]
    written = file.read_text()
    nothing_in_it = ("", "[]", '{"schema": 1, "files": {"a": {}}}')
    for other in (written.replace('"schema": 1', '"schema": 2'), written[:-9], *nothing_in_it):
        file.write_text(other)
        seen.clear()
        assert Index(file).of("events", path) == found
        assert seen == [0]


def test_an_index_that_can_not_be_written_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.adapters.event_files.spans._SAVE_AFTER_BYTES", 1)
    (tmp_path / "state").touch()
    path = write_file(tmp_path / "events", [scalar(TAG, 3)])
    index = Index(tmp_path / "state" / "index.json")
    assert index.of("events", path).last(ITERATION) == 3
    index.keep({"events"})


# Scalars

Told = list[tuple[str, int, float, float]]


def told(data: bytes, of_bytes: int = 1 << 20) -> tuple[Told, ScalarFile]:
    """Tag, step, time and value of each scalar."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_STRETCH_BYTES", of_bytes)
        file = ScalarFile(io.BytesIO(data), {})
        found: Told = []
        for one in file.stretches():
            tags = {number: tag for tag, number in file.tags.items()}
            columns = (one.tags.tolist(), one.steps.tolist(), one.times_unix_s.tolist(), one.values.tolist())
            found += [(tags[n], step, time, value) for n, step, time, value in zip(*columns, strict=True)]
        return found, file


def tensors() -> st.SearchStrategy[tuple[dict[str, Any], float | None]]:
    """A tensor as TensorFlow 2 writes scalars, and the number that it holds; None where it is no one number."""
    single = {1: "f", 2: "d", 3: "i", 9: "q"}
    content = st.tuples(st.sampled_from(sorted(single)), st.integers(-9, 9)).map(
        lambda p: ({"dtype": p[0], "tensor_content": struct.pack(f"<{single[p[0]]}", p[1])}, float(p[1]))
    )
    packed = st.sampled_from(
        [
            ({"dtype": 1, "float_val": [2.5]}, 2.5),
            ({"dtype": 2, "double_val": [2.5]}, 2.5),
            ({"dtype": 1, "float_val": [2.5, 3.5]}, None),
            ({"dtype": 2, "float_val": [2.5]}, None),
            ({"dtype": 1, "double_val": [2.5]}, None),
            ({"dtype": 1, "tensor_content": bytes(8)}, None),
            ({"dtype": 9, "tensor_content": bytes(4)}, None),
            ({"dtype": 3, "int_val": [7]}, None),
            ({"dtype": 7, "string_val": [b"1234"]}, None),
            ({"float_val": [2.5]}, None),
            ({"dtype": 1}, None),
        ]
    )
    return content | packed


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            STEPS, st.lists(st.tuples(TAGS, st.floats(width=32, allow_nan=False) | tensors() | st.none()), max_size=3)
        ),
        max_size=12,
    ),
    st.sampled_from([13, 300, 1 << 20]),
)
def test_scalars_are_read_as_tensorboards_own_protobuf_reads_them(
    written: list[tuple[int, list[tuple[str, Any]]]], of_bytes: int
) -> None:
    made: list[Event] = []
    expected: Told = []
    for number, (step, values) in enumerate(written):
        event = Event(wall_time=1.7e9 + number, step=step)
        for tag, value in values:
            one = event.summary.value.add(tag=tag)
            if isinstance(value, float):
                one.simple_value = value
            elif value is None:
                one.histo.bucket.extend([1.0])
            else:
                one.tensor.MergeFrom(type(one.tensor)(**value[0]))
                value = value[1]  # noqa: PLW2901 - the number that it holds
            if value is not None:
                expected.append((tag, step, event.wall_time, float(value)))
        made.append(event)
    found, file = told(framed(made), of_bytes)
    assert found == expected
    assert (file.records, file.bad, file.problem) == (len(made), [], None)
    assert list(file.tags) == list(dict.fromkeys(tag for tag, *_ in expected)) or len(file.tags) >= len(
        {tag for tag, *_ in expected}
    )


@pytest.mark.parametrize("of_bytes", [13, 250, 1 << 20])
def test_records_that_can_not_be_read_are_told_by_their_numbers(of_bytes: int) -> None:
    raw = [scalar("lm loss", step, float(step)).SerializeToString() for step in range(1, 11)]
    raw[4] = NO_EVENT
    raw[8] = b"\x10\x05\x0a\x01x"  # a time of one byte
    data = bytearray(raw_framed(*raw))
    for number in (2, 3, 9):
        data[len(raw_framed(*raw[:number])) + 20] ^= 1
    found, file = told(bytes(data), of_bytes)
    assert [step for _, step, _, _ in found] == [1, 2, 6, 7, 8]
    checksum, event = "its checksum does not hold", "it holds no event"
    assert dict(file.bad) == {3: checksum, 4: checksum, 5: event, 9: event, 10: checksum}
    assert len(file.bad) == 5
    assert file.records == 10


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"\x08\x05\x10\x07", []),  # a time that is no double
        (b"\x12\x01\x07", []),
        (b"\x28\x07", []),
        (
            b"\x10\x07\x18\x09\x2a\x0a\x0a\x08\x0a\x01a\x15\x00\x00\x80\x3f",
            [("a", 7, 0.0, 1.0)],
        ),  # a number that is no step
        (b"\x2a\x02\x08\x01", []),  # a value that is none
        (b"\x10\x07\x2a\x09\x0a\x07\x08\x01\x15\x00\x00\x80\x3f", [("", 7, 0.0, 1.0)]),  # a tag that is a number
        (b"\x10\x07\x2a\x07\x0a\x05\x0a\x01a\x10\x01", []),  # a scalar that is a whole number
        (b"\x10\x07\x2a\x07\x0a\x05\x0a\x01a\x40\x01", []),  # a tensor that is a number
        (b"\x10\x07\x2a\x0d\x0a\x0b\x0a\x01a\x42\x06\x0a\x00\x22\x02ab", []),  # a type that is text
    ],
)
def test_values_of_another_kind_than_a_scalars_are_passed_over(raw: bytes, found: Told) -> None:
    read, file = told(raw_framed(raw))
    assert (read, file.bad) == (found, [])


def test_tags_have_the_same_numbers_in_each_of_several_files() -> None:
    numbers: dict[str, int] = {}
    for tags in (["a", "b"], ["b", "c", "a"]):
        file = ScalarFile(io.BytesIO(framed([scalar(tag, 1) for tag in tags])), numbers)
        assert [n for one in file.stretches() for n in one.tags.tolist()] == [{"a": 0, "b": 1, "c": 2}[t] for t in tags]
    assert numbers == {"a": 0, "b": 1, "c": 2}


def test_ordinary_scalars_are_read_without_walking_through_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are a hundred million of them; of a cut, too."""
    written = [scalar(tag, step, step / 4) for step in (0, 1, 127, 128, 2**40) for tag in ("lm loss", "a vs samples")]

    def walked(*_: object) -> None:
        raise AssertionError("walked")

    monkeypatch.setattr("sentinel.adapters.event_files.scalars.walked", walked)
    monkeypatch.setattr("sentinel.adapters.event_files.events.walked", walked)
    found, file = told(framed(written))
    assert [(step, value) for _, step, _, value in found] == [(e.step, e.step / 4) for e in written]
    assert file.bad == []
    (stretch,), _ = stretches(framed(written), 1 << 20)
    assert read_events(stretch)[0].axes.tolist() == [Axis.ITERATION, Axis.SAMPLES] * 5
