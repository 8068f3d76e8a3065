"""Tables of JSON: lines of objects, and the log history of Hugging Face's trainer_state.json.

Keys are the columns; keys of an object within an object are joined with `/`. Beside a trainer_state.json, or above it,
lie its checkpoints. An array of such entries by itself is read, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sentinel.sources.column_names import no_loss, resolve
from sentinel.sources.column_source import CHUNK_ROWS, ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes, lines_of
from sentinel.sources.line_text import text_within
from sentinel.sources.table_source import Object, keys_of, object_source
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import json_too_large
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished

__all__ = ["head_of_objects", "open_json_lines", "open_trainer_state"]

_HEAD_BYTES = 1 << 20
_DEEPEST = 6
_decode = msgspec.json.Decoder().decode


def open_json_lines(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file's first lines are JSON objects and some key of theirs is a loss.

    ConfigError when they are, and a column of `asked` is not a key of theirs.
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
    notes = [] if "step" in naming.columns else ["there is no key with the step: lines are numbered from 1"]
    return object_source(path, "jsonl", lambda tally: _batches(path, tally), naming.columns, notes)


def head_of_objects(path: Path) -> list[Object]:
    """The objects on the file's first lines; empty where the first line, or half of them, are not."""
    with Bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    lines = head.split(b"\n")
    if len(lines) > 1 and len(head) == _HEAD_BYTES:
        lines.pop()  # it may go on
    filled = [line for line in lines if line.strip() and not line.lstrip().startswith(b"#")]
    if not filled or not filled[0].lstrip().startswith(b"{"):
        return []
    objects = []
    for line in filled:
        try:
            objects.append(_object(line))
        except LineError:
            continue
    return objects if 2 * len(objects) > len(filled) else []


def _document(text: bytes) -> Any:
    """ValueError, RecursionError when it is not JSON; NaN, as Python writes it, is read."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(text.decode("utf-8", "replace"))


def _object(line: bytes) -> Object:
    """LineError when the line is not an object."""
    try:
        found = _decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            found = _document(line)
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


def _batches(path: Path, tally: Tally) -> Iterator[tuple[Sequence[Object], Sequence[int]]]:
    number = 0
    with Bytes(path) as file:
        for lines in lines_of(file):
            objects, numbers = _objects(lines, number, tally)
            number += len(lines)
            if objects:
                yield objects, numbers
        if file.problem is not None:
            tally.cannot_read(number + 1, file.problem)


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


_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_HISTORY = "log_history"
_AT_THE_END = "train_runtime"
"""A key of the entry that sums the run up; its train_loss is the mean over all steps."""

_STATE_HEAD_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 28
"""A longer one is an error."""

_ARRAY = re.compile(rb"\s*\[\s*\{")


def open_trainer_state(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The log history in the file, or in that of the newest `checkpoint-N` of a folder.

    ConfigError when it is a trainer_state.json by its name and can't be read.
    """
    found = _state_file(path)
    if found is None:
        return None
    read = _history(found)
    if read is None:
        return None
    name, history = read
    if wrong := [ours for ours in asked if ours in ("rank", "attempt")]:
        raise ConfigError(f"{_FILE} is of one rank and one attempt; there is no column for {wrong[0]}")
    names = sorted(set().union(*history))
    columns = resolve(names, asked, str(found)).columns
    if "loss" not in columns:
        raise no_loss(str(found), names)
    saved = [*_checkpoints(path if path.is_dir() else path.parent)]
    notes = [] if "step" in columns else ["no entry has a step: entries are numbered from 1"]
    return object_source(found, name, lambda tally: _entries(found, saved, tally), columns, notes)


def _state_file(path: Path) -> Path | None:
    if not path.is_dir():
        return path
    if (path / _FILE).is_file():
        return path / _FILE
    states = [(saved.global_step, path / saved.tag / _FILE) for saved in _checkpoints(path)]
    return max(((step, state) for step, state in states if state.is_file()), default=(0, None))[1]


def _checkpoints(folder: Path) -> Iterator[CheckpointSaved]:
    """The `checkpoint-N` in a folder, or beside it where it is one itself."""
    folder = folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder
    try:
        names = [one.name for one in folder.iterdir() if one.is_dir()]
    except OSError:
        names = []
    steps = sorted(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name)))
    for step in steps:
        if f"checkpoint-{step}" in names:
            yield CheckpointSaved(attempt=1, global_step=step, time_unix_s=math.nan, tag=f"checkpoint-{step}")


def _history(path: Path) -> tuple[str, list[Object]] | None:
    """The format's name and the entries; None where the file is no trainer state and no array of entries."""
    called_so = path.name == _FILE
    with Bytes(path) as file:
        start = file.read(_STATE_HEAD_BYTES)
        alone = _ARRAY.match(start) is not None
        if not called_so and not alone and (not start.lstrip().startswith(b"{") or _is_one_of_many(start)):
            return None
        file.push_back(start)
        text = file.read(_LARGEST_BYTES)
        goes_on = file.read(1) != b""
    if not called_so and not alone and f'"{_HISTORY}"'.encode() not in text:
        return None
    if goes_on or (why := json_too_large(text)) is not None:
        why = f"is larger than {_LARGEST_BYTES >> 20} MiB" if goes_on else why
        raise ConfigError(f"{path} can't be read: the JSON document {why}; write it as lines of JSON (.jsonl)")
    try:
        state = _document(text)
        history = state if alone else state[_HISTORY]
        if not isinstance(history, list):
            raise TypeError
        entries = [entry if isinstance(entry, dict) else {} for entry in history]
        return "json" if alone else "huggingface_trainer_state", entries
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        if not called_so:
            return None
        raise ConfigError(f"{path} can't be read as Hugging Face's trainer state: {str(error)[:200]}") from error


def _is_one_of_many(start: bytes) -> bool:
    """Whether the first line is a document by itself, without a history: the file is JSONL, of whatever size."""
    line, end, _ = start.partition(b"\n")
    try:
        return bool(end) and _HISTORY not in _document(line)
    except (ValueError, RecursionError, TypeError):
        return False


def _entries(
    path: Path, saved: list[CheckpointSaved], tally: Tally
) -> Iterator[tuple[Sequence[Object], Sequence[int]]]:
    for record in saved:
        tally.keep(record)
    _, history = _history(path) or ("", [])
    for start in range(0, len(history), CHUNK_ROWS):
        entries = history[start : start + CHUNK_ROWS]
        entries = [_sum_up(entry, tally) if _AT_THE_END in entry else entry for entry in entries]
        yield entries, range(start + 1, start + 1 + len(entries))


def _sum_up(entry: Object, tally: Tally) -> Object:
    step = entry.get("step")
    if isinstance(step, int):
        tally.keep(RunFinished(attempt=1, global_step=step, time_unix_s=math.nan, reason="finished"))
    return {}
