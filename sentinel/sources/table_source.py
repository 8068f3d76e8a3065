"""From a table to a source of samples: the part that all readers of tables share.

A reader gives batches: the cells of its columns, or objects whose keys are the columns, with the number of each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sentinel.judge.readings import CARRIED, Readings
from sentinel.sources.column_names import FIELDS, SPLITS, resolve, resolve_until_loss
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.row_merge import RowMerge
from sentinel.sources.table_rows import Cells, Flags, Floats, Rows, Whole, cells_of_values, split_losses

_LARGEST_STEP = 2**53

# The cells of each field, the number of rows, and for a row the number that a person finds it by.
Batch = tuple[dict[str, Cells], int, Callable[[int], int]]
Object = dict[str, Any]  # Flat: an object in it is not a number. An absent key or null is "not logged".
# The objects of a table, some thousands at a time, and the number of each, from 1.
Objects = Iterator[tuple[Sequence[Object], Sequence[int]]]


def table_source(
    path: Path,
    kind: str,
    batches: Callable[[Tally], Iterator[Batch]],
    columns: Mapping[str, str],
    notes: Iterable[str] = (),
) -> ColumnSource:
    def chunks(tally: Tally) -> Iterator[Readings]:
        merge, given = RowMerge(tally), 0
        for note in notes:
            tally.note(note)
        tally.names = columns
        for cells, count, number_of in batches(tally):
            yield from merge.push(_rows_of(cells, count, given + 1, tally, number_of))
            given += count
        yield from merge.finish()
        tally.counts = {"rows": given, "evaluations": merge.evaluations, "repeated": merge.repeated}
        tally.counts["unreadable"] = tally.unreadable

    return ColumnSource(path, kind, chunks)


def object_source(
    path: Path, kind: str, batches: Callable[[Tally], Objects], columns: Mapping[str, str], notes: Iterable[str] = ()
) -> ColumnSource:
    """The samples of a table of objects. Keys of fields that have no column yet are taken as they come."""

    def cells(tally: Tally) -> Iterator[Batch]:
        tally.names = known = dict(columns)
        for objects, numbers in batches(tally):
            find_more(keys_of(objects), known)
            found = {ours: cells_of_values([one.get(theirs) for one in objects]) for ours, theirs in known.items()}
            split = next((key for key in SPLITS if objects and (key in objects[0] or key in objects[-1])), None)
            if split is not None:
                split_losses(found, [one.get(split) for one in objects])
            yield found, len(objects), numbers.__getitem__

    return table_source(path, kind, cells, columns, notes)


def searched_source(
    path: Path, kind: str, batches: Callable[[Tally], Objects], asked: Mapping[str, str]
) -> ColumnSource:
    """The same; the columns are found among the keys of the objects up to the first loss. ConfigError where no key is a
    loss, or a column of `asked` is not a key."""
    names = (keys_of(objects) for objects, _ in batches(Tally()))
    return object_source(path, kind, batches, resolve_until_loss(names, asked, str(path)).columns)


def keys_of(objects: Sequence[Object]) -> list[str]:
    return sorted(set().union(*objects))


def find_more(names: Iterable[str], columns: dict[str, str]) -> None:
    """Adds names that first come up later, such as a validation loss. What was found before stays."""
    if len(columns) < len(FIELDS):
        known = set(columns.values())
        for ours, theirs in resolve([name for name in names if name not in known], {}, "").columns.items():
            if ours not in ("step", "attempt", "rank"):
                columns.setdefault(ours, theirs)


def _rows_of(columns: Mapping[str, Cells], count: int, first: int, tally: Tally, line: Callable[[int], int]) -> Rows:
    """The readable rows of a batch; rows without any reading are passed over. `first` is the number of the first row,
    for a table without a step; `line` gives the line of a row."""
    wrong: dict[int, str] = {}
    for name, cells in columns.items():
        for row, what in cells.bad.items() if name not in CARRIED else ():  # no sample is lost for these
            wrong.setdefault(row, f"{name} should be a number, not {what}")
    readings = {name: cells for name, cells in columns.items() if name not in ("step", "rank", "attempt")}
    usable = something = np.logical_or.reduce([cells.there for cells in readings.values()])
    places = {"step": np.arange(first, first + count)}
    for name, otherwise in (("step", math.nan), ("attempt", 1), ("rank", 0)):
        if name in columns:
            filled = np.where(columns[name].there, columns[name].values, otherwise)
            fine, places[name] = _whole(filled, something, name, wrong)
            usable = usable & fine
    for row in sorted(wrong):
        tally.cannot_read(line(row) if tally.shows_more else 0, wrong[row])
    usable[list(wrong)] = False
    rows = Rows(
        steps=places["step"],
        values={name: cells.values for name, cells in readings.items()},
        there={name: cells.there for name, cells in readings.items()},
        lanes=places.get("rank"),
        attempts=places.get("attempt"),
    )
    return rows if usable.all() else rows.taken(usable)


def _whole(values: Floats, something: Flags, name: str, wrong: dict[int, str]) -> tuple[Flags, Whole]:
    """Where the values are whole numbers from 0 on, and those numbers; `wrong` gets other rows that have readings."""
    with np.errstate(invalid="ignore"):
        fine = (values >= 0) & (values < _LARGEST_STEP) & (values == np.floor(values))
    for row in np.flatnonzero(~fine & something).tolist():
        why = "is not there" if math.isnan(values[row]) else f"should be a whole number, not {values[row]:.15g}"
        wrong.setdefault(row, f"the {name} {why}")
    return fine, np.where(fine, values, 0).astype(np.int64)
