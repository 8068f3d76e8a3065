"""Hugging Face's trainer_state.json: its log_history, and the checkpoints beside it; or such a history by itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sentinel.judge.readings import Readings
from sentinel.sources.cells import cells_of_values, rows_of
from sentinel.sources.files import Bytes
from sentinel.sources.lanes import Stream
from sentinel.sources.names import no_loss, resolve
from sentinel.sources.source import CHUNK_ROWS, FileSource, Tally
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import json_too_large
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished

__all__ = ["open_trainer_state"]

_FILE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_HISTORY = "log_history"
_AT_THE_END = "train_runtime"
"""A key of the entry that sums the run up; its train_loss is the mean over all steps."""

_HEAD_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 28
"""A longer one is an error."""

_ARRAY = re.compile(rb"\s*\[\s*\{")

Entry = dict[str, Any]


def open_trainer_state(path: Path, asked: Mapping[str, str]) -> FileSource | None:
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
    return FileSource(found, name, lambda tally: _chunks(found, columns, saved, tally))


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


def _history(path: Path) -> tuple[str, list[Entry]] | None:
    """The format's name and the entries; None where the file is no trainer state, and no array of such entries."""
    called_so = path.name == _FILE
    with Bytes(path) as file:
        start = file.read_up_to(_HEAD_BYTES)
        alone = _ARRAY.match(start) is not None
        if not called_so and not alone and (not start.lstrip().startswith(b"{") or _is_one_of_many(start)):
            return None
        file.push_back(start)
        text = file.read_up_to(_LARGEST_BYTES)
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


def _document(text: bytes) -> Any:
    """ValueError, RecursionError when it is no JSON; NaN, which Python writes and JSON does not know, is taken."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return json.loads(text.decode("utf-8", "replace"))


def _chunks(path: Path, columns: Mapping[str, str], saved: list[CheckpointSaved], tally: Tally) -> Iterator[Readings]:
    stream = Stream(tally)
    for record in saved:
        tally.keep(record)
    if "step" not in columns:
        tally.note("no entry has a step: entries are numbered from 1")
    _, history = _history(path) or ("", [])
    for start in range(0, len(history), CHUNK_ROWS):
        entries = history[start : start + CHUNK_ROWS]
        entries = [_sum_up(entry, tally) if _AT_THE_END in entry else entry for entry in entries]
        cells = {ours: cells_of_values([entry.get(theirs) for entry in entries]) for ours, theirs in columns.items()}
        line = range(start + 1, start + 1 + len(entries)).__getitem__  # the number of the entry: it is one document
        yield from stream.push(rows_of(cells, len(entries), start + 1, tally, line))
    yield from stream.finish()


def _sum_up(entry: Entry, tally: Tally) -> Entry:
    step = entry.get("step")
    if isinstance(step, int):
        tally.keep(RunFinished(attempt=1, global_step=step, time_unix_s=math.nan, reason="finished"))
    return {}
