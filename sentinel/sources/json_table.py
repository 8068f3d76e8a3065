"""Tables of JSON: lines of objects, and the log history of Hugging Face's trainer_state.json.

Keys are the columns; keys of an object within an object are joined with `/`. Beside a trainer_state.json, or above it,
lie its checkpoints. An array of such entries by itself is read, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from sentinel.sources.column_names import no_loss, resolve, resolve_until_loss
from sentinel.sources.column_source import CHUNK_ROWS, ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes, lines_of
from sentinel.sources.line_text import text_within
from sentinel.sources.table_source import Object, Objects, keys_of, object_source
from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import json_too_large
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished

_HEAD_BYTES = 1 << 20
_DEEPEST = 6
_decode = msgspec.json.Decoder().decode


def open_json_lines(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The table, where the file's first lines are JSON objects and some key of theirs is a loss. ConfigError when they
    are, and a column of `asked` is not a key of theirs."""
    head = head_of_objects(path)
    if not head:
        return None
    names = keys_of(head)
    nulls = [name for name in names if all(one.get(name) is None for one in head)]
    naming = resolve(names, asked, str(path), nulls)
    columns, notes = naming.columns, naming.notes
    if "loss" not in columns:
        if path.name.removesuffix(".gz").endswith(".jsonl") and not any(map(text_within, head)):
            raise no_loss(str(path), names)
        return None
    if "step" not in columns:
        notes.append("there is no key with the step: lines are numbered from 1")
    return object_source(path, "jsonl", lambda tally: _batches(path, tally), columns, notes)


def head_of_objects(path: Path) -> list[Object]:
    """The objects on the file's first lines; empty where the first line, or half of them, are not."""
    with Bytes(path) as file:
        head = file.read(_HEAD_BYTES)
    lines = head.split(b"\n")
    if len(lines) > 1 and len(head) == _HEAD_BYTES:
        lines.pop()  # it may go on
    filled = [line for line in lines if not _is_no_row(line)]
    if not filled or not filled[0].lstrip().startswith(b"{"):
        return []
    objects = []
    for line in filled:
        try:
            objects.append(_object(line))
        except LineError:
            continue
    return objects if 2 * len(objects) > len(filled) else []


def _is_no_row(line: bytes) -> bool:
    """Whether the line is blank or a comment."""
    start = line.lstrip()[:1]
    return not start or start == b"#"


def _document(text: bytes) -> Any:
    """ValueError, RecursionError when it is not JSON; NaN, as Python writes it, is read."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(text.decode("utf-8", "replace"))


def _object(line: bytes | None) -> Object:
    """LineError when the line is not an object."""
    if line is None:
        raise LineError("the line is too long")
    try:
        found = _document(line)
    except (ValueError, RecursionError) as error:
        raise LineError(f"not JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise LineError(f"a JSON object was expected, not {type(found).__name__}")
    return _flat(found, _DEEPEST) if dict in map(type, found.values()) else found


def _flat(found: Object, levels: int) -> Object:
    flat: Object = {}
    for key, value in found.items():
        if isinstance(value, dict) and levels:
            flat |= {f"{key}/{inner}": each for inner, each in _flat(value, levels - 1).items()}
        else:
            flat[key] = value
    return flat


def _batches(path: Path, tally: Tally) -> Objects:
    number = 0
    with Bytes(path) as file:
        for lines in lines_of(file):
            objects, numbers = [], []
            for line in lines:
                number += 1
                try:
                    objects.append(_object(line))
                    numbers.append(number)
                except LineError as error:
                    if line is None or not _is_no_row(line):
                        tally.cannot_read(number, str(error))
            if objects:
                yield objects, numbers
        if file.problem is not None:
            tally.cannot_read(number + 1, file.problem)


_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_HISTORY = "log_history"
_AT_THE_END = "train_runtime"  # a key of the entry that sums the run up; its train_loss is the mean over all steps
_STATE_HEAD_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 28  # a longer one is an error
_ARRAY = re.compile(rb"\s*\[\s*\{")


def open_trainer_state(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The log history in the file, or in that of the newest `checkpoint-N` of a folder. ConfigError when it is a
    trainer_state.json by its name and can't be read."""
    saved = _checkpoints(path if path.is_dir() else path.parent)
    found = [file for tag in (*(each.tag for each in saved), "") if (file := path / tag / _FILE).is_file()]
    state = next(reversed(found), None) if path.is_dir() else path
    read = None if state is None else _history(state)
    if state is None or read is None:
        return None
    name, history = read
    if wrong := [ours for ours in asked if ours in ("rank", "attempt")]:
        raise ConfigError(f"{_FILE} is of one rank and one attempt; there is no column for {wrong[0]}")
    columns = resolve_until_loss([keys_of(history)], asked, str(state)).columns
    notes = [] if "step" in columns else ["no entry has a step: entries are numbered from 1"]
    return object_source(state, name, lambda tally: _entries(state, saved, tally), columns, notes)


def _checkpoints(folder: Path) -> list[CheckpointSaved]:
    """The `checkpoint-N` in a folder, or beside it where it is one itself."""
    folder = folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder
    try:
        names = [one.name for one in folder.iterdir() if one.is_dir()]
    except OSError:
        names = []
    steps = sorted(int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name)))
    return [
        CheckpointSaved(attempt=1, global_step=step, time_unix_s=math.nan, tag=f"checkpoint-{step}")
        for step in steps
        if f"checkpoint-{step}" in names
    ]


def _history(path: Path) -> tuple[str, list[Object]] | None:
    """The format's name and the entries; None where the file is no trainer state and no array of entries."""
    called_so = path.name == _FILE
    with Bytes(path) as file:
        start = file.read(_STATE_HEAD_BYTES)
        alone = _ARRAY.match(start) is not None
        if not called_so and not alone and (not start.lstrip().startswith(b"{") or _is_one_of_many(start)):
            return None
        text = file.read(_LARGEST_BYTES - len(start), after=start)
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


def _entries(path: Path, saved: list[CheckpointSaved], tally: Tally) -> Objects:
    for record in saved:
        tally.keep(record)
    _, history = _history(path) or ("", [])
    for start in range(0, len(history), CHUNK_ROWS):
        entries = history[start : start + CHUNK_ROWS]
        for at, entry in enumerate(entries):
            if _AT_THE_END in entry:
                entries[at] = {}
                if isinstance(step := entry.get("step"), int):
                    tally.keep(RunFinished(attempt=1, global_step=step, time_unix_s=math.nan, reason="finished"))
        yield entries, range(start + 1, start + 1 + len(entries))
