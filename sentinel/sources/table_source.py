"""Rows of a table that comes as objects: keys are its columns, and what is absent or null was not logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.judge.readings import Readings
from sentinel.sources.cells import cells_of_values, rows_of, tell_apart
from sentinel.sources.column_names import FIELDS, SPLITS, no_loss, resolve
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.row_merge import Stream
from sentinel.sources.rows import Rows
from sentinel.vocabulary.errors import ConfigError

__all__ = ["Batches", "Object", "keys_of", "look_for_more", "rows_of_objects", "source_of_objects"]

_MOST_KEYS = 200_000
"""Each is looked at for a loss; what a trainer logs of each layer and head is some ten thousand."""

Object = dict[str, Any]
"""Flat: an object within it is no number, and told."""

Batches = Callable[[Tally], Iterator[tuple[Sequence[Object], Sequence[int]]]]
"""The objects of a table, some thousands at a time, and the number of each, from 1."""


def source_of_objects(where: Path, kind: str, batches: Batches, asked: Mapping[str, str]) -> ColumnSource:
    """The table, its columns found among the keys of the objects up to the first loss, and later ones as they come.

    ConfigError where no key is a loss, or what was asked for is no key.
    """
    names: dict[str, None] = {}
    for objects, _ in batches(Tally()):
        names |= dict.fromkeys(keys_of(objects))
        if len(names) > _MOST_KEYS:
            raise ConfigError(f"{where} can't be read: its objects have more than {_MOST_KEYS:,} different keys")
        if "loss" in resolve(names, {}, "").columns and set(asked.values()) <= names.keys():
            break
    naming = resolve(names, asked, str(where))
    if "loss" not in naming.columns:
        raise no_loss(str(where), names)
    return ColumnSource(where, kind, lambda tally: _chunks(batches, dict(naming.columns), tally))


def keys_of(objects: Sequence[Object]) -> list[str]:
    """All their keys."""
    return sorted(set().union(*objects))


def look_for_more(objects: Sequence[Object], columns: dict[str, str]) -> None:
    """Keys that first come up later: a validation loss, a loss scale. What was found before stays what it is."""
    if len(columns) < len(FIELDS):
        known = set(columns.values())
        fresh = [key for key in keys_of(objects) if key not in known]
        for ours, theirs in resolve(fresh, {}, "").columns.items():
            if ours not in ("step", "attempt", "rank"):
                columns.setdefault(ours, theirs)


def rows_of_objects(
    objects: Sequence[Object], numbers: Sequence[int], columns: Mapping[str, str], given: int, tally: Tally
) -> Rows:
    """Their rows; `given` were given out before, `numbers` are what is told of one that can't be read."""
    cells = {ours: cells_of_values([one.get(theirs) for one in objects]) for ours, theirs in columns.items()}
    if (
        objects
        and (split := next((key for key in SPLITS if key in objects[0] or key in objects[-1]), None)) is not None
    ):
        tell_apart(cells, [one.get(split) for one in objects])
    return rows_of(cells, len(objects), given + 1, tally, numbers.__getitem__)


def _chunks(batches: Batches, columns: dict[str, str], tally: Tally) -> Iterator[Readings]:
    stream, given = Stream(tally), 0
    for objects, numbers in batches(tally):
        look_for_more(objects, columns)
        yield from stream.push(rows_of_objects(objects, numbers, columns, given, tally))
        given += len(objects)
    yield from stream.finish()
