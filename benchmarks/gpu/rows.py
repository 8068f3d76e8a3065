"""The rows that are there already, in a file for each part: one JSON object a line, appended as a case ends."""

from __future__ import annotations

import itertools
from pathlib import Path

from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import dump_json, load_object

from .setting import UNFINISHED, Row

__all__ = ["Rows", "same_machine"]


class Rows:
    """Of one part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        """By the case's name; of a case that was measured twice the last."""
        for line in _lines(path):
            try:
                entry = load_object(line)
            except LineError:  # torn: the process was killed while it wrote
                continue
            self.rows[str(entry["case"])] = entry["row"]

    @property
    def done(self) -> list[str]:
        """Cases that need not be measured again."""
        return [case for case, row in self.rows.items() if UNFINISHED not in row]

    def add(self, case: str, row: Row) -> None:
        self.rows[case] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(dump_json({"case": case, "row": row}) + "\n")

    def set_aside(self) -> None:
        """Renames the file, so that every case is measured again."""
        if self._path.exists():
            beside = (self._path.with_suffix(f".jsonl.{number}") for number in itertools.count(1))
            self._path.rename(next(path for path in beside if not path.exists()))
        self.rows = {}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def same_machine(folder: Path, about: dict[str, str]) -> None:
    """Notes in the folder what its rows were measured on; ConfigError where that is something else."""
    path = folder / "about.json"
    if not path.exists():
        path.write_text(dump_json(about), encoding="utf-8")
        return
    then = load_object(path.read_text(encoding="utf-8"))
    if differing := [key for key in about if then.get(key) != about[key]]:
        told = "; ".join(f"{key}: {then.get(key)} then, {about[key]} now" for key in differing)
        raise ConfigError(f"{folder} holds rows of another machine or form ({told}); give another --folder")
