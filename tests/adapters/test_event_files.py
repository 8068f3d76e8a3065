"""Event files of any records: read as TensorBoard's own protobuf reads them, and parted without losing one."""

from __future__ import annotations

import io
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.event_files import frames
from sentinel.adapters.event_files.events import Axis, axis_of, read_events
from sentinel.adapters.event_files.frames import EventFile, Stretch
from sentinel.adapters.tensorboard import TensorBoard
from sentinel.vocabulary.overrides import Anchor
from tests.adapters.boards import WHERE, Event, RecordWriter, inventory, records, write_file

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
            value.simple_value = draw(st.sampled_from([0.0, 1.0, 30.0, 0.5, -1.0, float("nan"), float("inf"), 1e30]))
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
        assert stretch.first_bad_checksum() is None
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
    assert file.problem is not None or any(stretch.first_bad_checksum() is not None for stretch in found)


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


@pytest.mark.parametrize("size", [1 << 20, (1 << 24) + 7])
def test_a_large_record_is_read_whole(size: int) -> None:
    large = Event(step=7, graph_def=bytes(size))
    found, file = stretches(framed([Event(step=1), large, Event(step=2)]), 1 << 16)
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
