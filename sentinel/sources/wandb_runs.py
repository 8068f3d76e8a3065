"""Runs of Weights & Biases: in its own file run-ID.wandb, or asked of its server.

A header of 7 bytes, then blocks of 32 KiB of LevelDB's log: frames of checksum, length and kind, and a record is one
frame or several. A record is a protobuf message `Record`: its field 2 is a step's history, whose items are a key and
its value as JSON. The library has no reader of it any more that Python can call; nothing here needs the library.
Source: github.com/wandb/wandb, core/pkg/leveldb/record.go and wandb/proto/wandb_internal.proto.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from sentinel.adapters.event_files.events import fields_of
from sentinel.adapters.paging.secret import Secret
from sentinel.adapters.wandb import Wandb, WandbRun
from sentinel.bounded import LINE_BYTES
from sentinel.sources.column_names import resolve_until_loss
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.file_bytes import Bytes
from sentinel.sources.table_source import Object, Objects, searched_source
from sentinel.vocabulary.errors import ConfigError

PREFIX = "wandb:"
_KEY_VARIABLE = "WANDB_API_KEY"

_HEADER = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES = 1 << 15
_FRAME = struct.Struct("<IHB")
_DOUBLE = struct.Struct("<d")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _ITEM = 2, 1
_KEY, _NESTED_KEY, _BOOLEAN, _INTEGER, _NUMBER, _JSON, _VALUE_JSON = 1, 2, 4, 5, 6, 8, 16
_AT_ONCE = 1 << 12


def open_wandb(path: Path, asked: Mapping[str, str]) -> ColumnSource | None:
    """The run of a .wandb file, or of the folder that holds one (wandb/offline-run-…); None for anything else.
    ConfigError when nothing that was logged is a loss, when a column of `asked` is not there, or when a folder holds
    several."""
    if path.is_dir():
        there = sorted(path.glob("*.wandb"))
        if len(there) > 1:
            raise ConfigError(f"{path} holds {len(there)} .wandb files, and one is wanted; name one of them")
        return open_wandb(there[0], asked) if there else None
    with Bytes(path) as file:
        if file.read(len(_HEADER)) != _HEADER:
            return None
    return searched_source(path, "wandb", lambda tally: _batches(path, tally), asked)


def _batches(path: Path, tally: Tally) -> Objects:
    objects: list[Object] = []
    numbers: list[int] = []
    size = 0
    with Bytes(path) as file:
        for number, record in enumerate(_records(file, tally), 1):
            try:
                found = _history(record)
            except (IndexError, ValueError, RecursionError, struct.error):
                tally.cannot_read(number, "it holds no record")
                continue
            if found:
                objects.append(found)
                numbers.append(number)
            size += len(record)
            if len(objects) == _AT_ONCE or size > LINE_BYTES:
                yield objects, numbers
                objects, numbers, size = [], [], 0
        if file.problem is not None:
            tally.cannot_read(1, file.problem)
    if objects:
        yield objects, numbers


def _records(file: Bytes, tally: Tally) -> Iterator[bytes]:
    """The records that are whole. What is damaged is counted, and its block left; a torn end is the end."""
    at, parts, block_number, size = len(_HEADER), list[bytes](), 0, 0
    while block := file.read(_BLOCK_BYTES):
        block_number += 1
        while at + _FRAME.size <= len(block):
            checksum, length, kind = _FRAME.unpack_from(block, at)
            begin, at = at + _FRAME.size, at + _FRAME.size + length
            if at > len(block) or zlib.crc32(block[begin - 1 : at]) != checksum:
                if len(block) == _BLOCK_BYTES or at <= len(block):
                    tally.cannot_read(block_number, "a block whose checksum does not hold")
                parts.clear()
                break
            if kind in (_WHOLE, _FIRST):
                parts.clear()
                size = 0
            elif not parts:  # what it goes on with was damaged, or too long
                continue
            parts.append(block[begin:at])
            size += at - begin
            if size > LINE_BYTES:
                tally.cannot_read(block_number, f"a record of more than {LINE_BYTES >> 20} MiB")
                parts.clear()
                continue
            if kind in (_WHOLE, _LAST):
                yield b"".join(parts)
                parts.clear()
        at = 0


def _history(record: bytes) -> Object | None:
    """A step's history by its keys; None for a record of anything else."""
    found: Object = {}
    for number, value in fields_of(record):
        if number != _HISTORY or not isinstance(value, bytes):
            continue
        for inner, item in fields_of(value):
            if inner == _ITEM and isinstance(item, bytes):
                _put(found, *_item(item))
    return found or None


def _put(found: Object, key: str, read: Any) -> None:
    """Under its key, an object's own under KEY.THEIRS, as its charts call them; a picture or a table is left out."""
    if not isinstance(read, dict):
        found[key] = read
    elif "_type" not in read:
        for inner, value in read.items():
            _put(found, f"{key}.{inner}", value)


def _item(item: bytes) -> tuple[str, Any]:
    key, nested, found = "", list[str](), None
    for number, value in fields_of(item):
        if isinstance(value, int):
            found = bool(value) if number == _BOOLEAN else value - (value >> 63 << 64) if number == _INTEGER else found
        elif number == _KEY:
            key = value.decode("utf-8", "replace")
        elif number == _NESTED_KEY:
            nested.append(value.decode("utf-8", "replace"))
        elif number == _NUMBER:
            (found,) = _DOUBLE.unpack(value)
        elif number in (_JSON, _VALUE_JSON):
            found = _value(value)
    return key or ".".join(nested), found


def _value(text: bytes) -> Any:
    """A number, or an object of some; a word or a list is nothing that was measured."""
    try:
        return float(text)  # also NaN and Infinity, which are no JSON
    except ValueError:
        pass
    read = json.loads(text)
    return read if isinstance(read, bool | dict) or read in ("NaN", "Infinity", "-Infinity") else None


def source_in_wandb(name: str, columns: Mapping[str, str]) -> ColumnSource:
    """The run of `wandb:ENTITY/PROJECT/RUN-ID`, with the key of the environment."""
    parts = name.removeprefix(PREFIX).split("/")
    if len(parts) != 3 or not all(parts):
        raise ConfigError(f"{name} should look like {PREFIX}ENTITY/PROJECT/RUN-ID, the end of the run's address")
    entity, project, run_id = parts
    there = project_of(WandbRun(entity=entity, project=project, run_id=run_id))

    def batches(_: Tally) -> Objects:
        rows, given = there.rows(run_id), 0
        while batch := [dict(row) for row in islice(rows, _AT_ONCE)]:
            yield batch, range(given + 1, given + len(batch) + 1)
            given += len(batch)

    return searched_source(Path(name), "wandb", batches, columns)


def named_columns(rows: Iterable[Mapping[str, Any]], of: WandbRun, where: str) -> tuple[str, str]:
    configured = {ours: theirs for ours, theirs in (("loss", of.loss), ("step", of.step)) if theirs is not None}
    columns = resolve_until_loss(rows, configured, where).columns
    return columns["loss"], columns.get("step", "_step")


def offline_runs(folder: Path) -> dict[str, list[Path]]:
    """Run's id -> its files, of a trainer's `wandb` folder; by the time in the folders' names, the newest last."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("offline-run-*/run-*.wandb"), key=lambda path: path.parent.name):
        run_id = path.stem.removeprefix("run-")
        found[run_id] = [*found.pop(run_id, []), path]
    return found


def rows_of(path: Path) -> Iterator[Object]:
    for objects, _ in _batches(path, Tally()):
        yield from objects


def project_of(of: WandbRun) -> Wandb:
    """The project that the table names, with the key of its file or of the environment."""
    env = None if of.api_key_file is not None else _KEY_VARIABLE
    key = Secret(what="api_key", env=env, file=of.api_key_file, environ=os.environ).read()
    return Wandb(of.entity or "", of.project or "", key, url=of.url, timeout_s=of.timeout_s)
