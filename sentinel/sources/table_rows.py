"""Rows of a table as columns of numbers, from cells of text, of pyarrow or of Python values.

A blank cell is "not logged", nan is "logged as nan", in every spelling of Python, C, Java, JavaScript and JSON writers;
any other text is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sentinel.sources.column_names import is_of_training, is_of_validation
from sentinel.sources.column_source import Tally
from sentinel.sources.line_text import not_finite
from sentinel.vocabulary.numbers import LARGEST_WHOLE, LATEST_UNIX_S

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Whole = NDArray[np.int64]
Key = tuple[int, int]  # attempt, step

# Field to its largest possible number; what is larger, below 0 or nan was not logged.
_POSSIBLE = {"time_unix_s": LATEST_UNIX_S} | dict.fromkeys(
    ("consumed_samples", "consumed_tokens", "lr_warmup_steps"), float(LARGEST_WHOLE)
)


@dataclass(slots=True, kw_only=True)
class Rows:
    """n rows in the order of the source."""

    steps: Whole
    values: dict[str, Floats]  # field to its (n,) values: COLUMNS, CARRIED, skipped, validation_loss
    there: dict[str, Flags]  # field to (n,): where there is a reading; for each of `values`
    # (n,) the rank or tag that reported the row, where that is known. Lanes may be out of step with one another.
    lanes: Whole | None = None
    attempts: Whole | None = None  # (n,) where the source has them, or once they were found

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def known_attempts(self) -> Whole:
        """(n,): the attempts; 1 where the rows have none."""
        return np.ones(len(self), np.int64) if self.attempts is None else self.attempts

    def place(self, at: int) -> Key:
        return int(self.known_attempts[at]), int(self.steps[at])

    def before(self, key: Key) -> Flags:
        """(n,): whether the row is of an earlier attempt or step."""
        attempts = self.known_attempts
        found: Flags = (attempts < key[0]) | ((attempts == key[0]) & (self.steps < key[1]))
        return found

    def taken(self, which: slice | Whole | Flags) -> Rows:
        return Rows(
            steps=self.steps[which],
            values={name: values[which] for name, values in self.values.items()},
            there={name: there[which] for name, there in self.there.items()},
            lanes=None if self.lanes is None else self.lanes[which],
            attempts=None if self.attempts is None else self.attempts[which],
        )

    def where(self, name: str) -> Flags:
        """(n,): where the field has a reading."""
        return self.there[name] if name in self.there else np.zeros(len(self), np.bool_)

    def possible(self, tally: Tally) -> Rows:
        """The rows with a possible step; the others are counted. Impossible times and counts are taken out."""
        for name in _POSSIBLE.keys() & self.values.keys():
            self.there[name] = self.there[name] & (self.values[name] >= 0) & (self.values[name] <= _POSSIBLE[name])
        fine = (self.steps >= 0) & (self.steps <= LARGEST_WHOLE)
        if fine.all():
            return self
        for step in self.steps[~fine].tolist():
            tally.cannot_read(0, f"the step {step} is none")
        return self.taken(fine)

    @classmethod
    def joined(cls, several: list[Rows]) -> Rows:
        """The rows one after the other; all have attempts and lanes, or none has."""
        if len(several) == 1:
            return several[0]
        names = dict.fromkeys(name for rows in several for name in rows.values)
        attempts = [rows.attempts for rows in several if rows.attempts is not None]
        lanes = [rows.lanes for rows in several if rows.lanes is not None]
        return Rows(
            steps=np.concatenate([rows.steps for rows in several]),
            values={n: np.concatenate([r.values.get(n, np.full(len(r), math.nan)) for r in several]) for n in names},
            there={n: np.concatenate([rows.where(n) for rows in several]) for n in names},
            lanes=np.concatenate(lanes) if lanes else None,
            attempts=np.concatenate(attempts) if attempts else None,
        )


# Written where nothing was measured.
BLANK = ("", "null", "NULL", "Null", "None", "none", "NA", "N/A", "n/a", "<NA>", "-", "--", "No log")
_OF_SO_MANY = re.compile(r"(\d{1,15})/\d{1,15}")  # a step and the number of steps
_NOT_FINITE = {"nan", "NaN", "inf", "-inf", "Infinity", "-Infinity"}  # in JSON of ours, of Python and of JavaScript
_SHOWN = 60


class Cells(NamedTuple):
    values: Floats
    there: Flags  # where something was logged
    bad: Mapping[int, str] = {}  # row to what stands there instead of a number


def cells_of_arrow(array: Any) -> Cells:
    """The cells of a pyarrow array of any type but a dictionary."""
    try:
        numbers = pc.cast(array, pa.float64(), safe=False)
    except pa.ArrowException:
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            array = array.cast(pa.large_binary())
        try:
            found = array.to_pylist()
        except (ValueError, OverflowError, ArithmeticError):  # a date that Python has no name for
            found = ["something that is no number"] * len(array)
        return cells_of_values([one.decode("utf-8", "replace") if isinstance(one, bytes) else one for one in found])
    values = numbers.fill_null(math.nan).to_numpy(zero_copy_only=False)
    return Cells(values, numbers.is_valid().to_numpy(zero_copy_only=False))


def cells_of_values(found: Sequence[Any]) -> Cells:
    """The cells of Python values, as JSON or text gives them; None is blank."""
    types = set(map(type, found))
    if types == {type(None)}:
        return Cells(np.full(len(found), math.nan), np.zeros(len(found), np.bool_))
    numbers = types <= {float, int, bool, type(None)}
    if numbers or (types <= {float, int, type(None), str} and {x for x in found if type(x) is str} <= _NOT_FINITE):
        try:
            values = np.array(found, np.float64)
        except OverflowError:
            pass
        else:
            if type(None) not in types:
                return Cells(values, np.ones(len(found), np.bool_))
            return Cells(values, np.array([x is not None for x in found], np.bool_))
    values, there, bad = np.full(len(found), math.nan), np.zeros(len(found), np.bool_), {}
    for row, value in enumerate(found):
        try:
            number = _number(value)
        except (ValueError, OverflowError):
            bad[row] = repr(value)[:_SHOWN]
            continue
        if number is not None:
            values[row], there[row] = number, True
    return Cells(values, there, bad)


def _number(value: Any) -> float | None:
    """ValueError, OverflowError when it is not a number."""
    if isinstance(value, list) and value:  # one for each group of parameters
        value = value[0]
    if value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        raise ValueError(value)
    text = value.strip().strip("\"'").strip()
    if text in BLANK:
        return None
    if text in ("True", "true", "False", "false"):
        return float(text in ("True", "true"))
    if "_" in text:
        raise ValueError(text)
    if (of_so_many := _OF_SO_MANY.fullmatch(text)) is not None:
        return float(of_so_many[1])
    return odd if (odd := not_finite(text)) is not None else float(text)


def split_losses(columns: dict[str, Cells], splits: Sequence[object]) -> None:
    """Moves the losses of validation rows to `validation_loss`; `splits` names for each row the split it is of."""
    loss = columns.get("loss")
    trains = np.array([is_of_training(split) for split in splits], np.bool_)
    if loss is None or trains.all():
        return
    values, known = loss.values, loss.there & np.array([is_of_validation(split) for split in splits], np.bool_)
    if (other := columns.get("validation_loss")) is not None:
        values, known = np.where(other.there, other.values, values), known | other.there
    columns["validation_loss"] = Cells(values, known)
    columns["loss"] = Cells(loss.values, loss.there & trains, {at: what for at, what in loss.bad.items() if trains[at]})
