"""JSONL: an object on each line, its columns by their keys; keys of an object within are joined with `/`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from sentinel.judge.readings import Readings
from sentinel.sources.column_names import no_loss, resolve
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes, lines_of
from sentinel.sources.line_text import text_within
from sentinel.sources.row_merge import Stream
from sentinel.sources.table_source import Object, keys_of, look_for_more, rows_of_objects
from sentinel.vocabulary.errors import LineError

__all__ = ["head_of_objects", "open_json_lines"]

_HEAD_BYTES = 1 << 20
_DEEPEST = 6
_decode = msgspec.json.Decoder().decode


def open_json_lines(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file's first lines are JSON objects and some key of theirs is a loss.

    ConfigError when they are, and what was asked for is no key of theirs.
    """
    head = head_of_objects(path)
    if not head:
        return None
    names = keys_of(head)
    naming = resolve(names, asked, str(path))
    if "loss" not in naming.columns:
        if path.name.removesuffix(".gz").endswith(".jsonl") and not any(map(text_within, head)):
            raise no_loss(str(path), names)
        return None
    return ColumnSource(path, "jsonl", lambda tally: _chunks(path, dict(naming.columns), tally))


def head_of_objects(path: Path) -> list[Object]:
    """The objects on the file's first lines; none where the first line that says something is none, or many are not."""
    with Bytes(path) as file:
        head = file.read_up_to(_HEAD_BYTES)
    lines = head.split(b"\n")
    if len(lines) > 1 and len(head) == _HEAD_BYTES:
        lines.pop()  # it may go on
    said = [line for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    if not said or not said[0].lstrip().startswith(b"{"):
        return []
    objects = []
    for line in said:
        try:
            objects.append(_object(line))
        except LineError:
            continue
    return objects if 2 * len(objects) > len(said) else []


def _object(line: bytes) -> Object:
    """LineError when the line holds none. Python writes nan as NaN, which is no JSON, and is taken."""
    try:
        found = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            found = json.loads(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError) as error:
            raise LineError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise LineError(f"a JSON object was expected, not {type(found).__name__}")
    if dict in map(type, found.values()):
        flat: Object = {}
        _flatten(found, "", flat, _DEEPEST)
        return flat
    return found


def _flatten(found: Object, prefix: str, flat: Object, levels: int) -> None:
    for key, value in found.items():
        if isinstance(value, dict) and levels:
            _flatten(value, f"{prefix}{key}/", flat, levels - 1)
        else:
            flat[prefix + key] = value


def _chunks(path: Path, columns: dict[str, str], tally: Tally) -> Iterator[Readings]:
    stream, number, given = Stream(tally), 0, 0
    if "step" not in columns:
        tally.note("there is no key with the step: lines are numbered from 1")
    with Bytes(path) as file:
        for lines in lines_of(file):
            objects, numbers = _objects(lines, number, tally)
            number += len(lines)
            if objects:
                look_for_more(objects, columns)
                yield from stream.push(rows_of_objects(objects, numbers, columns, given, tally))
                given += len(objects)
        if file.problem is not None:
            tally.cannot_read(number + 1, file.problem)
    yield from stream.finish()


def _objects(lines: list[bytes | None], before: int, tally: Tally) -> tuple[list[Object], list[int]]:
    objects, numbers = [], []
    for number, line in enumerate(lines, before + 1):
        try:
            if line is None:
                raise LineError("the line is too long")
            objects.append(_object(line))
            numbers.append(number)
        except LineError as error:
            if line is None or (line.strip() and not line.lstrip().startswith(b"#")):
                tally.cannot_read(number, str(error))
    return objects, numbers
