"""TensorBoard's event files: TFRecord framing and the two protobuf fields that a cut needs. No copy of the schema.

A record is length (uint64, little endian), masked CRC32C of it, data, masked CRC32C of the data; data is an Event:
field 2 is the step (varint), field 5 the Summary, whose repeated field 1 are Values with the tag as field 1.
Source: tensorflow/core/util/event.proto, summary.proto, and lib/io/record_writer.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["Event", "read_events"]

_LENGTH = struct.Struct("<Q")
_MAX_RECORD_BYTES = 1 << 30
"""A longer record is taken for a torn or corrupt length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One record, with what a cut needs to know of it."""

    record: bytes
    """The record with its framing, to be copied verbatim: its CRCs stay valid."""

    step: int
    tag: str | None
    """Tag of its first value; None where it carries none (file version, session start, graph)."""


def read_events(file: BinaryIO) -> Iterator[Event]:
    """The events from where the file stands; ends at the first record that is torn or makes no sense."""
    while len(header := file.read(12)) == 12:
        (length,) = _LENGTH.unpack_from(header)
        if length > _MAX_RECORD_BYTES:
            return
        body = file.read(length + 4)
        if len(body) < length + 4:
            return
        try:
            step, tag = _step_and_tag(body[:length])
        except (IndexError, UnicodeDecodeError, ValueError):
            return
        yield Event(record=header + body, step=step, tag=tag)


def _step_and_tag(data: bytes) -> tuple[int, str | None]:
    step, tag = 0, None
    for number, value in _fields(data):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes) and tag is None:
            tag = _first_tag(value)
    return step, tag


def _first_tag(summary: bytes) -> str | None:
    for number, value in _fields(summary):
        if number == 1 and isinstance(value, bytes):
            for inner, text in _fields(value):
                if inner == 1 and isinstance(text, bytes):
                    return text.decode("utf-8")
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
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
