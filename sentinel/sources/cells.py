"""Cells of a table as numbers: blank is "not logged", nan is "logged as nan", anything else that is no number is told.

nan and the infinities are taken in every spelling that Python, C, Java, JavaScript and JSON writers use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sentinel.judge.readings import CARRIED
from sentinel.sources.column_names import is_of_training, is_of_validation
from sentinel.sources.column_source import Tally
from sentinel.sources.line_text import not_finite
from sentinel.sources.rows import Rows

__all__ = ["BLANK", "Cells", "cells_of_arrow", "cells_of_values", "rows_of", "tell_apart"]

BLANK = ("", "null", "NULL", "Null", "None", "none", "NA", "N/A", "n/a", "<NA>", "-", "--", "No log")
"""What writers put where nothing was measured."""
_OF_SO_MANY = re.compile(r"(\d{1,15})/\d{1,15}")
"""A step that is told with how many there will be."""

_LARGEST_STEP = 2**53
_SHOWN = 60


@dataclass(slots=True, kw_only=True)
class Cells:
    """One column's cells."""

    values: NDArray[np.float64]
    there: NDArray[np.bool_] | None = None
    """Where something was logged; None for everywhere."""

    bad: Mapping[int, str] | None = None
    """Row to what stands there instead of a number."""


def cells_of_arrow(array: Any) -> Cells:
    """The cells of a pyarrow array of whatever type."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return Cells(values=np.full(len(array), math.nan), there=np.zeros(len(array), np.bool_))
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    try:
        numbers = pc.cast(array, pa.float64(), safe=False)
    except pa.ArrowException:
        return cells_of_values(_python_values(array))
    values = numbers.fill_null(math.nan).to_numpy(zero_copy_only=False)
    return Cells(values=values, there=None if not numbers.null_count else ~_nulls(numbers))


def _nulls(array: Any) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def _python_values(array: Any) -> list[Any]:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.cast(pa.binary() if pa.types.is_string(array.type) else pa.large_binary())
    try:
        found = array.to_pylist()
    except (ValueError, OverflowError, ArithmeticError):  # a date that Python has no name for
        return ["something that is no number"] * len(array)
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in found]


_NUMBERS = {float, int}
_NOT_FINITE = {"nan", "NaN", "inf", "-inf", "Infinity", "-Infinity"}
"""As our journals, Python and JavaScript spell them in JSON."""


def cells_of_values(found: Sequence[Any]) -> Cells:
    """The cells of Python values, as JSON or text gives them; None is blank."""
    types = set(map(type, found))
    try:
        if types <= _NUMBERS:
            return Cells(values=np.array(found, np.float64))
        if types <= _NUMBERS | {type(None)}:
            there = np.array([value is not None for value in found], np.bool_)
            return Cells(values=np.array(found, np.float64), there=there)
        if types <= _NUMBERS | {type(None), str} and {one for one in found if type(one) is str} <= _NOT_FINITE:
            there = np.array([value is not None for value in found], np.bool_)
            return Cells(values=np.array(found, np.float64), there=None if there.all() else there)
    except OverflowError:
        pass
    values, there, bad = np.full(len(found), math.nan), np.zeros(len(found), np.bool_), {}
    for row, value in enumerate(found):
        try:
            number = _number(value)
        except (ValueError, OverflowError):
            bad[row] = repr(value)[:_SHOWN]
            continue
        if number is not None:
            values[row], there[row] = number, True
    return Cells(values=values, there=there, bad=bad)


def _number(value: Any) -> float | None:
    """ValueError, OverflowError when it is none."""
    if isinstance(value, list) and value:  # one for each group of parameters
        value = value[0]
    if isinstance(value, str):
        text = value.strip().strip("\"'").strip()
        if text in BLANK:
            return None
        if text in ("True", "true", "False", "false"):
            return float(text in ("True", "true"))
        if "_" in text:
            raise ValueError(text)
        if (of_so_many := _OF_SO_MANY.fullmatch(text)) is not None:
            return float(of_so_many[1])
        try:
            return float(text)
        except ValueError:
            if (odd := not_finite(text)) is None:
                raise
            return odd
    if value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    raise ValueError(value)


def tell_apart(columns: dict[str, Cells], splits: Sequence[object]) -> None:
    """Takes the losses of rows that are of a validation for what they are; `splits` says of each row what it is of."""
    loss = columns.get("loss")
    trains = np.array([is_of_training(split) for split in splits], np.bool_)
    if loss is None or trains.all():
        return
    validates = np.array([is_of_validation(split) for split in splits], np.bool_)
    there = np.ones(len(trains), np.bool_) if loss.there is None else loss.there
    values, known = loss.values, there & validates
    if (other := columns.get("validation_loss")) is not None:
        elsewhere = ~np.isnan(other.values) if other.there is None else other.there
        values, known = np.where(elsewhere, other.values, values), known | elsewhere
    columns["validation_loss"] = Cells(values=values, there=known)
    bad = {row: what for row, what in (loss.bad or {}).items() if trains[row]}
    columns["loss"] = Cells(values=loss.values, there=there & trains, bad=bad)


def rows_of(columns: Mapping[str, Cells], count: int, first: int, tally: Tally, line: Callable[[int], int]) -> Rows:
    """The rows of a stretch of a table that can be read. Those that hold nothing that is looked for are passed over.

    `first` is the number of the first row, for a table without a step; `line` tells on which line a row stands.
    """
    wrong: dict[int, str] = {}
    for name, cells in columns.items():
        for row, what in (cells.bad or {}).items() if name not in CARRIED else ():  # no sample is lost for these
            wrong.setdefault(row, f"{name} should be a number, not {what}")
    step = columns.get("step")
    readings = {name: cells for name, cells in columns.items() if name not in ("step", "rank", "attempt")}
    something = np.zeros(count, np.bool_)
    for cells in readings.values():
        something |= True if cells.there is None else cells.there
    if step is None:
        usable, steps = something, np.arange(first, first + count)
    else:
        usable, steps = _whole(step.values, something, "step", wrong)
    others = {}
    for name, otherwise in (("attempt", 1), ("rank", 0)):
        if name in columns:
            cells = columns[name]
            filled = cells.values if cells.there is None else np.where(cells.there, cells.values, otherwise)
            fine, others[name] = _whole(filled, something, name, wrong)
            usable = usable & fine
    for row in sorted(wrong):
        tally.cannot_read(line(row) if tally.shows_more else 0, wrong[row])
    if wrong:
        usable[list(wrong)] = False
    rows = Rows(
        steps=steps,
        values={name: cells.values for name, cells in readings.items()},
        there={name: cells.there for name, cells in readings.items() if cells.there is not None},
        lanes=others.get("rank"),
        attempts=others.get("attempt"),
    )
    return rows if usable.all() else rows.taken(usable)


def _whole(
    values: NDArray[np.float64], something: NDArray[np.bool_], name: str, wrong: dict[int, str]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Where the values are whole numbers from 0 on, and those numbers; where something was logged beside, it's told."""
    with np.errstate(invalid="ignore"):
        fine = (values >= 0) & (values < _LARGEST_STEP) & (values == np.floor(values))
    for row in np.flatnonzero(~fine & something).tolist():
        told = "is not there" if math.isnan(values[row]) else f"should be a whole number, not {values[row]:.15g}"
        wrong.setdefault(row, f"the {name} {told}")
    return fine & something, np.where(fine, values, 0).astype(np.int64)
