"""Rows of a table as columns of numbers, from cells of text, of pyarrow or of Python values.

A blank cell is "not logged", nan is "logged as nan", in every spelling of Python, C, Java, JavaScript and JSON writers;
any other text is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sentinel.sources.column_names import is_of_training, is_of_validation
from sentinel.sources.column_source import Tally
from sentinel.sources.line_text import not_finite
from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S

__all__ = [
    "BLANK",
    "Cells",
    "Flags",
    "Floats",
    "Rows",
    "Whole",
    "cells_of_arrow",
    "cells_of_values",
    "split_losses",
]

_POSSIBLE = {
    "time_unix_s": (0.0, LATEST_UNIX_S),
    "consumed_samples": (0.0, float(LARGEST_WHOLE)),
    "consumed_tokens": (0.0, float(LARGEST_WHOLE)),
    "lr_warmup_steps": (0.0, float(LARGEST_WHOLE)),
}
"""Field to its smallest and largest possible number; nan is "not logged"."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Rows:
    """n rows in the order of the source."""

    steps: Whole
    values: dict[str, Floats]
    """Field to its (n,) values: COLUMNS, CARRIED, skipped, validation_loss."""

    there: dict[str, Flags] = field(default_factory=dict)
    """Field to (n,): where there is a reading. A field that is not named here has one everywhere."""

    lanes: Whole | None = None
    """(n,) the rank or tag that reported the row, where that is known. Lanes may be out of step with one another."""

    attempts: Whole | None = None
    """(n,) where the source has them, or once they were found."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def known_attempts(self) -> Whole:
        """(n,): the attempts; 1 where the rows have none."""
        return np.ones(len(self), np.int64) if self.attempts is None else self.attempts

    def place(self, at: int) -> tuple[int, int]:
        """Attempt and step of a row."""
        return int(self.known_attempts[at]), int(self.steps[at])

    def taken(self, which: slice | Whole | Flags) -> Rows:
        """Some of the rows."""
        return Rows(
            steps=self.steps[which],
            values={name: values[which] for name, values in self.values.items()},
            there={name: there[which] for name, there in self.there.items()},
            lanes=None if self.lanes is None else self.lanes[which],
            attempts=None if self.attempts is None else self.attempts[which],
        )

    @classmethod
    def joined(cls, several: list[Rows]) -> Rows:
        """The rows one after the other; all have attempts, or none has."""
        if len(several) == 1:
            return several[0]
        names = {name for rows in several for name in rows.values}
        gaps = {n for n in names if any(n in rows.there or n not in rows.values for rows in several)}
        attempts = [rows.attempts for rows in several if rows.attempts is not None]
        lanes = [rows.lanes for rows in several if rows.lanes is not None]
        return cls(
            steps=np.concatenate([rows.steps for rows in several]),
            values={n: np.concatenate([rows.values.get(n, _nans(len(rows))) for rows in several]) for n in names},
            there={n: np.concatenate([rows.where(n) for rows in several]) for n in gaps},
            lanes=np.concatenate(lanes) if lanes else None,
            attempts=np.concatenate(attempts) if attempts else None,
        )

    def possible(self, tally: Tally) -> Rows:
        """The rows with a possible step; the others are counted. Impossible times and counts are taken out."""
        for name, (least, most) in _POSSIBLE.items():
            if name in self.values:
                fine = (self.values[name] >= least) & (self.values[name] <= most)
                if not fine.all():
                    self.there[name] = self.where(name) & fine
                    self.values[name] = np.where(fine, self.values[name], math.nan)
        fine = (self.steps >= 0) & (self.steps <= LARGEST_WHOLE)
        if fine.all():
            return self
        for step in self.steps[~fine].tolist():
            tally.cannot_read(0, f"the step {step} is none")
        return self.taken(fine)

    def where(self, name: str) -> Flags:
        """(n,): where the field has a reading."""
        if name not in self.values:
            return np.zeros(len(self), np.bool_)
        return self.there.get(name, np.ones(len(self), np.bool_))


def _nans(n: int) -> Floats:
    return np.full(n, math.nan)


BLANK = ("", "null", "NULL", "Null", "None", "none", "NA", "N/A", "n/a", "<NA>", "-", "--", "No log")
"""Written where nothing was measured."""
_OF_SO_MANY = re.compile(r"(\d{1,15})/\d{1,15}")
"""A step and the number of steps."""

_SHOWN = 60


@dataclass(slots=True, kw_only=True)
class Cells:
    """One column's cells."""

    values: Floats
    there: Flags | None = None
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


def _nulls(array: Any) -> Flags:
    nulls: Flags = pc.is_null(array).to_numpy(zero_copy_only=False)
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
    """ValueError, OverflowError when it is not a number."""
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


def split_losses(columns: dict[str, Cells], splits: Sequence[object]) -> None:
    """Moves the losses of validation rows to `validation_loss`; `splits` names for each row the split it is of."""
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
