"""What is known so far: a file of JSON lines, each on the disk before the next thing is done, and its copy elsewhere.

{"machine": {…}}                     the first line: what the rows were measured on
{"begun": CASE}                      before each case
{"of": CASE, "row": {…}, "took_s"}   it has answered
{"of": CASE, "failed": WHY}          it has not; also where it was killed after its time
{"of": CASE, "cut": WHY}             the call's minutes were over: it counts as not tried
{"again": CASE}                      what is above of it no longer counts
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from sentinel.vocabulary.errors import ConfigError, LineError
from sentinel.vocabulary.numbers import dump_json, load_object

from .case import Case, Row

__all__ = ["MOST_TRIES", "Rows"]

MOST_TRIES = 3
"""Over all calls. One call tries a case once."""

_FILE = "rows.jsonl"


class Rows:
    """The rows of one machine and form."""

    def __init__(self, folder: Path, out: Path | None = None) -> None:
        """`out` gets a copy of each line as it is written. Where the folder has no rows and `out` has, they are taken
        up from there."""
        self.path = folder / _FILE
        self._copy = out / _FILE if out is not None else None
        self.machine: dict[str, str] = {}
        self.rows: dict[str, Row] = {}
        """{case: its last row}."""
        self.failed: dict[str, str] = {}
        """{case: why its last try gave no row}."""
        self.tries: Counter[str] = Counter()
        for made in (folder, out):
            if made is not None:
                made.mkdir(parents=True, exist_ok=True)
        if self._copy is not None and not self.path.exists() and self._copy.exists():
            shutil.copyfile(self._copy, self.path)
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        for line in text.splitlines():
            try:
                self._take(load_object(line))
            except LineError:  # torn: the process was killed while it wrote
                continue
        if text and not text.endswith("\n"):
            _append(self.path, "\n")
        if self._copy is not None and self.path.exists():
            shutil.copyfile(self.path, self._copy)

    def of_machine(self, machine: dict[str, str]) -> None:
        """Notes what the rows are measured on; ConfigError where those that are there are of something else."""
        kept = ("hardware", "form")
        if differing := [key for key in kept if self.machine and self.machine.get(key) != machine[key]]:
            told = "; ".join(f"{key}: {self.machine.get(key)} then, {machine[key]} now" for key in differing)
            raise ConfigError(f"{self.path} holds rows of another machine or form ({told}); give another --folder")
        if self.machine != machine:
            self.add({"machine": machine})

    def add(self, entry: dict[str, Any]) -> None:
        """Writes one line, and its copy, to the disk."""
        self._take(entry)
        for path in filter(None, (self.path, self._copy)):
            _append(path, dump_json(entry) + "\n")

    def to_do(self, every: list[Case]) -> list[Case]:
        """Cases without a row that may be tried, in their order; what was begun and has not answered comes last."""
        left = [case for case in every if case.name not in self.rows and self.tries[case.name] < MOST_TRIES]
        return sorted(left, key=lambda case: self.tries[case.name])

    def _take(self, entry: dict[str, Any]) -> None:
        if "machine" in entry:
            self.machine = entry["machine"]
        elif "again" in entry:
            name = entry["again"]
            for known in (self.rows, self.failed, self.tries):
                known.pop(name, None)
        elif "begun" in entry:
            self.tries[entry["begun"]] += 1
            self.failed[entry["begun"]] = "begun, and the call ended before it answered"
        elif "row" in entry:
            self.rows[entry["of"]] = {**entry["row"], "took_s": entry["took_s"]}
            self.failed.pop(entry["of"], None)
        elif "failed" in entry:
            self.failed[entry["of"]] = entry["failed"]
        elif "cut" in entry:
            self.tries[entry["of"]] -= 1
            self.failed.pop(entry["of"], None)


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
