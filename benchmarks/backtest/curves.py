"""Labelled loss curves: INDEX.csv and the files that it names."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import lzma
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

__all__ = ["DIVERGED", "HARMLESS", "Curve", "CurveError", "Event", "Values", "held_out", "read_curve", "read_folder"]

Values = tuple[float | None, ...]

DIVERGED = frozenset({"diverged", "nan"})
"""Labels for which a rollback is right."""

HARMLESS = frozenset({"stable", "spikes_recovered", "regime_shift"})
"""Labels for which a rollback is wrong."""

LABELS = DIVERGED | HARMLESS | {"ambiguous"}
KINDS = frozenset({"spike", "minor", "diverge", "nan", "regime", "ambiguous"})
OPENERS = {".csv": None, ".csv.gz": gzip.decompress, ".csv.xz": lzma.decompress}


class CurveError(ValueError):
    """A curve or its index is not what it should be; says the file, the line and the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One labelled event, in steps."""

    kind: str
    """spike, minor, diverge, nan, regime or ambiguous."""

    onset: int
    peak: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run's readings with what a person says that they mean."""

    name: str
    folder: str
    """Name of the folder that it came from."""

    label: str
    events: tuple[Event, ...]
    log_interval: int
    """Steps between two readings, as a rule."""

    short: bool
    """Quoted lines of a chronicle or an issue: a handful of points."""

    held_out: bool
    """Kept from every tuning, with its whole family."""

    note: str
    steps: tuple[int, ...]
    columns: Mapping[str, Values]
    """Column to its values; None is not measured, nan is measured as nan. `loss` is always there."""

    family: str = ""
    """What its siblings have in common: repository and model, or the cause of a recorded one."""

    planned: tuple[int, ...] = ()
    """Steps at which something was changed on purpose, as the people of the run knew."""

    @property
    def losses(self) -> Values:
        """The column that every curve has, nats."""
        return self.columns["loss"]

    def measured(self, column: str) -> bool:
        """Whether the column holds a reading anywhere."""
        return any(v is not None for v in self.columns.get(column, ()))

    def attempts(self) -> tuple[int, ...]:
        """The attempt of each row: as the file says, and a new one where the steps go back."""
        said = self.columns.get("attempt", ())
        attempts: list[int] = []
        for i, step in enumerate(self.steps):
            before = attempts[-1] if attempts else 1
            named = said[i] if i < len(said) else None
            if named is not None and math.isfinite(named):
                attempts.append(max(before, int(named)))
            else:
                attempts.append(before + (i > 0 and step <= self.steps[i - 1]))
        return tuple(attempts)


def held_out(family: str) -> bool:
    """Whether a family of curves is kept from every tuning: about a third are, by the family's name alone."""
    return hashlib.sha256(family.encode()).digest()[0] % 3 == 0


def read_folder(folder: Path, every: int = 1) -> tuple[Curve, ...]:
    """The curves that the folder's INDEX.csv names, every n-th of them. Raises CurveError."""
    index = folder / "INDEX.csv"
    try:
        text = index.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CurveError(f"{index}: {error}") from error
    reader = csv.DictReader(io.StringIO(text))
    missing = {"name", "label"} - set(reader.fieldnames or ())
    if missing:
        raise CurveError(f"{index}, line 1: no column {', '.join(sorted(missing))}")
    rows = [(reader.line_num, row) for row in reader]
    return tuple(_curve(folder, f"{index}, line {line}", row) for line, row in rows[::every])


def _curve(folder: Path, where: str, row: dict[str, str | None]) -> Curve:
    name, label = row.get("name") or "", row.get("label") or ""
    family = row.get("family") or row.get("cause") or name
    if not name:
        raise CurveError(f"{where}: name is empty")
    if label not in LABELS:
        raise CurveError(f"{where}: label {label!r} is none of {', '.join(sorted(LABELS))}")
    columns = read_curve(_file(folder, where, name, row.get("file") or ""))
    steps = tuple(int(s) for s in columns["step"] if s is not None)
    kept = row.get("held_out") or ""
    return Curve(
        name=name,
        folder=folder.name,
        label=label,
        events=_events(where, row.get("events") or ""),
        log_interval=_interval(where, row.get("log_interval") or "", steps),
        short=_is_yes(row.get("short") or ("yes" if len(steps) <= 50 else "no")),
        held_out=_is_yes(kept) if kept else held_out(family),
        family=family,
        note=row.get("note") or "",
        planned=_planned(where, row.get("regime") or ""),
        steps=steps,
        columns={key: values for key, values in columns.items() if key != "step"},
    )


def _file(folder: Path, where: str, name: str, file: str) -> Path:
    names = [file] if file else [f"{name}{suffix}" for suffix in OPENERS]
    for place in (folder, folder / "curves"):
        for each in names:
            if (place / each).is_file():
                return place / each
    raise CurveError(f"{where}: {'file' if file else 'name'}: no {' or '.join(names)} in {folder} or its curves/")


def _events(where: str, text: str) -> tuple[Event, ...]:
    events = []
    for word in text.split():
        kind, _, steps = word.partition(":")
        try:
            onset, peak, end = (int(step) for step in steps.split("-"))
        except ValueError:
            raise CurveError(f"{where}: events: {word!r} is not kind:onset-peak-end") from None
        if kind not in KINDS:
            raise CurveError(f"{where}: events: {kind!r} is none of {', '.join(sorted(KINDS))}")
        events.append(Event(kind=kind, onset=onset, peak=peak, end=end))
    return tuple(events)


def _planned(where: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word.rpartition(":")[2]) for word in text.split())
    except ValueError:
        raise CurveError(f"{where}: regime: {text!r} is not a list of kind:step") from None


def _interval(where: str, text: str, steps: tuple[int, ...]) -> int:
    """As the index says; the most frequent distance between two rows where it does not."""
    if text:
        try:
            return max(1, int(float(text)))
        except ValueError:
            raise CurveError(f"{where}: log_interval: {text!r} is not a number") from None
    distances = sorted(b - a for a, b in pairwise(steps) if b > a)
    return max(set(distances), key=distances.count) if distances else 1


def _is_yes(text: str) -> bool:
    return text.strip().lower() in {"yes", "true", "1"}


def read_curve(path: Path) -> dict[str, Values]:
    """The columns of NAME.csv, .csv.gz or .csv.xz, but for words. Raises CurveError."""
    suffix = next((s for s in (".csv.gz", ".csv.xz", ".csv") if path.name.endswith(s)), None)
    if suffix is None:
        raise CurveError(f"{path}: not a .csv, .csv.gz or .csv.xz")
    opener = OPENERS[suffix]
    try:
        content = path.read_bytes()
        text = (opener(content) if opener else content).decode()
    except (OSError, lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
        raise CurveError(f"{path}: {error}") from error
    reader = csv.reader(io.StringIO(text))
    header = next(reader, [])
    if missing := {"step", "loss"} - set(header):
        raise CurveError(f"{path}, line 1: no column {', '.join(sorted(missing))}")
    rows = [(reader.line_num, row) for row in reader if row]
    return {
        key: tuple(_number(path, line, key, row[i] if i < len(row) else "") for line, row in rows)
        for i, key in enumerate(header)
        if key != "extra"
    }


def _number(path: Path, line: int, key: str, text: str) -> float | None:
    if not text.strip():
        if key == "step":
            raise CurveError(f"{path}, line {line}: step is empty")
        return None
    try:
        number = float(text)
    except ValueError:
        raise CurveError(f"{path}, line {line}: {key}: {text!r} is not a number") from None
    if key == "step" and not number.is_integer():
        raise CurveError(f"{path}, line {line}: step: {text!r} is not a whole number")
    return number
