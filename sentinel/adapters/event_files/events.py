"""What a cut needs of each event: its step, the axis that the step is counted on, and its iteration where it says so.

An Event's field 1 is the time (double), 2 the step (varint), 5 the Summary, 7 the SessionLog; a Summary's repeated
field 1 are Values, with the tag as field 1 and a scalar as field 2 (float).
Source: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto.

A scalar with a short tag always has the same bytes before its tag, so all of a stretch are decoded at once; everything
else (histograms, images, text, long tags) is walked field by field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentinel.adapters.event_files.frames import HEADER_BYTES, Problem, Stretch

VALUE_KEY = 0x15  # the key of a Value's simple_value, a float


class Axis(IntEnum):
    """What an event's step counts."""

    ITERATION = 0
    SAMPLES = 1
    TOKENS = 2
    OTHER = 3  # something that no checkpoint counts, such as gigaflos: its events go with the iterations around them
    NONE = 4  # the event has no tag: file version, graph, metadata
    SESSION = 5  # the event has no tag and makes TensorBoard forget what came at its step and later


# As Megatron-DeepSpeed (Microsoft's and BigScience's) names what it does not write over iterations.
_SUFFIXES = {
    " vs samples": Axis.SAMPLES,
    ",x=samples": Axis.SAMPLES,
    " vs tokens": Axis.TOKENS,
    ",x=tokens": Axis.TOKENS,
    " vs gigaflos": Axis.OTHER,
}
# As DeepSpeed's own monitor names what it writes; the step is the engine's global_samples.
_PREFIXES = {"Train/Samples/": Axis.SAMPLES, "Train/Eigenvalues/": Axis.SAMPLES}
_VALUE_IS_ITERATION = ("y=steps,x=samples", "y=steps,x=tokens")  # ends of tags
# The keys of Summary, Value and tag, each before a length of one byte.
_SCALAR = np.uint64(int.from_bytes(b"\x2a\x00\x0a\x00\x0a\x00", "little"))
_SCALAR_BITS = np.uint64(int.from_bytes(b"\xff\x80\xff\x80\xff\x80", "little"))


def axis_of(tag: str) -> Axis:
    for suffix, axis in _SUFFIXES.items():
        if tag.endswith(suffix):
            return axis
    return next((axis for prefix, axis in _PREFIXES.items() if tag.startswith(prefix)), Axis.ITERATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    steps: NDArray[np.int64]
    axes: NDArray[np.uint8]  # values of Axis
    iterations: NDArray[np.int64]  # the iteration that the event belongs to, where its axis or value is one; else -1


def read_events(stretch: Stretch) -> tuple[Events, Problem | None]:
    """The stretch's events; with a problem, those before the first that is no event."""
    count = len(stretch.starts)
    short = short_scalars(stretch)
    steps, (axes, iterations), problem = short.steps, _axes_and_iterations(short), None
    for number in np.flatnonzero(~short.are).tolist():
        try:
            event = walked(stretch, number)
            steps[number], axes[number] = event.step, _axis_of_event(event)
        except (IndexError, ValueError):
            at = stretch.at + int(stretch.starts[number])
            problem, count = Problem(at=at, what=f"the record at byte {at} holds no event"), number
            break
    iterations = np.where(axes == Axis.ITERATION, steps, iterations)
    return Events(steps=steps[:count], axes=axes[:count], iterations=iterations[:count]), problem


def _axes_and_iterations(short: ShortScalars) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """By the tags of the short scalars, compared eight bytes at a time; ITERATION and -1 for all other events."""
    words, places, count = short.words, np.flatnonzero(short.are), len(short.steps)
    axes, iterations = np.full(count, Axis.ITERATION, np.uint8), np.full(count, -1, np.int64)
    starts, lengths = short.tags_at[places], short.tag_bytes[places]
    ends = starts + lengths
    first_words, last_words = words[starts], words[ends - 8]

    def having(text: str, *, at_end: bool) -> NDArray[np.int64]:
        """The numbers of the tags that begin or end with the text, of eight letters at least."""
        found = np.flatnonzero(last_words == _word(text[-8:]) if at_end else first_words == _word(text[:8]))
        at = ends[found] - len(text) if at_end else starts[found]
        same = lengths[found] >= len(text)
        for place in (*range(0, len(text) - 8, 8), len(text) - 8):
            same &= words[np.maximum(at + place, 0)] == _word(text[place : place + 8])
        return found[same]

    for prefix, axis in _PREFIXES.items():
        axes[places[having(prefix, at_end=False)]] = axis
    for suffix, axis in _SUFFIXES.items():
        axes[places[having(suffix, at_end=True)]] = axis
    for suffix in _VALUE_IS_ITERATION:
        found = having(suffix, at_end=True)
        value = words[ends[found]]  # its key, and four bytes of a float
        is_float = (value & np.uint64(0xFF)) == VALUE_KEY
        floats = ((value[is_float] >> np.uint64(8)) & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.float32)
        is_whole = (floats >= 0) & (floats < 2**24) & (floats == np.floor(floats))
        iterations[places[found[is_float]]] = np.where(is_whole, floats, -1)
    return axes, iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortScalars:
    """The events of a stretch that are one scalar with a short tag, one entry for each event."""

    words: NDArray[np.uint64]  # the eight bytes that begin at each byte of the stretch's data
    are: NDArray[np.bool_]  # which are such events; the other fields mean nothing for the rest
    steps: NDArray[np.int64]
    tags_at: NDArray[np.int64]  # offset in data of each tag; the value follows the tag, as a rule
    tag_bytes: NDArray[np.int64]


def short_scalars(stretch: Stretch) -> ShortScalars:
    """Finds them by the bytes that all of them have before their tag."""
    data = stretch.data + bytes(8)
    octets = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # one that begins at each byte
    last = len(words) - 1
    starts, ends = stretch.starts + HEADER_BYTES, stretch.ends - 4
    step_at = starts + 10  # a double under its key is 9 bytes, the step's key is one
    has_step = octets[starts + 9] == 0x10
    steps, step_bytes = _varints(words[np.minimum(step_at, last)])
    steps = np.where(has_step, steps, 0)
    summary_at = np.where(has_step, step_at + step_bytes, step_at - 1)
    summary = words[np.minimum(summary_at, last)]
    summary_bytes, value_bytes, tag_bytes = (
        ((summary >> np.uint64(shift)) & np.uint64(0x7F)).astype(np.int64) for shift in (8, 24, 40)
    )
    are = (
        (octets[starts] == 0x09)
        & (~has_step | (step_bytes > 0))
        & ((summary & _SCALAR_BITS) == _SCALAR)
        & (summary_bytes == value_bytes + 2)
        & (summary_at + 2 + summary_bytes == ends)
        & (tag_bytes + 2 <= value_bytes)
    )
    return ShortScalars(words=words, are=are, steps=steps, tags_at=summary_at + 6, tag_bytes=tag_bytes)


def _word(eight_letters: str) -> np.uint64:
    return np.uint64(int.from_bytes(eight_letters.encode(), "little"))


def _varints(words: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The varints that the words begin with, and their lengths in bytes; length 0 for one of more than eight."""
    stops = ~words & np.uint64(0x8080808080808080)
    stop = stops & (~stops + np.uint64(1))  # the top bit of the last byte, alone
    kept = words & (stop | (stop - np.uint64(1)))
    values = np.zeros(len(words), np.uint64)
    for place in range(words.itemsize):
        values |= (kept >> np.uint64(place)) & np.uint64(0x7F << 7 * place)
    return values.astype(np.int64), np.frexp(stop.astype(np.float64))[1].astype(np.int64) // 8


class WalkedEvent(NamedTuple):
    """Any event, undecoded but for its step."""

    step: int
    time: bytes
    summaries: list[bytes]
    has_session: bool


def walked(stretch: Stretch, number: int) -> WalkedEvent:
    """The record of this number, field by field. IndexError, ValueError when it is no event."""
    step, time, summaries, session = 0, bytes(8), list[bytes](), False
    for key, value in fields_of(stretch.data[stretch.starts[number] + HEADER_BYTES : stretch.ends[number] - 4]):
        if key == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif key == 1 and isinstance(value, bytes):
            time = value
        elif key == 5 and isinstance(value, bytes):
            summaries.append(value)
        session |= key == 7
    return WalkedEvent(step, time, summaries, session)


def values_of(event: WalkedEvent) -> Iterator[bytes]:
    for summary in event.summaries:
        yield from (value for key, value in fields_of(summary) if key == 1 and isinstance(value, bytes))


def _axis_of_event(event: WalkedEvent) -> Axis:
    for value in values_of(event):
        tags = (text for key, text in fields_of(value) if key == 1 and isinstance(text, bytes))
        return axis_of(next(tags, b"").decode("utf-8"))  # without a tag, TensorBoard shows it under the empty name
    return Axis.SESSION if event.has_session else Axis.NONE


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message: whole numbers for varints, bytes for everything else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint is too long")
