"""TensorBoard folders: the scalars of a run's event files, joined by their step.

Each folder with event files is a series of its own, as TensorBoard shows it. Its files are read in the order in which
they were begun; where a later one goes back to a step that an earlier one has, a new attempt begins. A tag whose step
is not an iteration (`lm loss vs samples`, DeepSpeed's `Train/Samples/…`) is only taken where the user names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from sentinel.adapters.event_files import ScalarFile, Scalars, is_event_file
from sentinel.bounded import open_regular
from sentinel.judge.readings import Readings
from sentinel.sources.column_names import FIELDS, no_loss, resolve
from sentinel.sources.column_source import ColumnSource, Tally
from sentinel.sources.row_merge import RowMerge
from sentinel.sources.table_rows import Rows
from sentinel.sources.table_source import find_more
from sentinel.vocabulary.errors import ConfigError

_LOADED = "tfevents"
_BEGUN = re.compile(r"tfevents\.(\d+)")
_TAKEN = tuple(name for name in FIELDS if name not in ("step", "rank", "attempt"))


def open_tensorboard(path: Path, asked: Mapping[str, str]) -> list[ColumnSource]:
    """One source for each folder below the path whose event files have a loss, or for the one event file. Empty where
    there are no event files. ConfigError when none of them has a loss, or a column of `asked`."""
    runs = _runs(path)
    if runs and (wrong := [name for name in asked if name not in _TAKEN]):
        raise ConfigError(f"TensorBoard's events know no column for {wrong[0]}; there are: {', '.join(_TAKEN)}")
    sources, tags_met, refused = [], dict[str, int](), None
    for folder, files in runs.items():
        tags: dict[str, int] = {}
        try:
            columns = _columns(files, asked, tags)
            if "loss" in columns:
                chunks = partial(_chunks, files, columns)
                sources.append(ColumnSource(folder, "tensorboard", chunks))
        except ConfigError as error:
            refused = error
        tags_met |= tags
    if not sources and refused is not None:
        raise refused
    if not sources and tags_met:
        raise no_loss(str(path), tags_met)
    return sources


def _runs(path: Path) -> dict[Path, list[Path]]:
    """Folder to its event files, in the order in which they were begun."""
    try:
        if path.is_dir():
            found = [one for one in path.rglob(f"*{_LOADED}*") if one.is_file()]
        else:
            with open_regular(path) as file:
                found = [path] if _LOADED in path.name or is_event_file(file) else []
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    runs: dict[Path, list[Path]] = {}
    for one in sorted(found, key=_begun):
        runs.setdefault(one.parent if path.is_dir() else one, []).append(one)
    return dict(sorted(runs.items()))


def _begun(path: Path) -> tuple[int, str]:
    found = _BEGUN.search(path.name)
    return int(found[1]) if found else 0, path.name


def _columns(files: list[Path], asked: Mapping[str, str], tags: dict[str, int]) -> dict[str, str]:
    """Adds the tags up to a loss, and gives the columns among them. ConfigError when a tag of `asked` is not there."""
    for path in files:
        with open_regular(path) as file:
            known = -1
            for _ in ScalarFile(file, tags).stretches():
                if len(tags) == known:
                    continue
                known = len(tags)
                if "loss" in resolve(tags, {}, "").columns and set(asked.values()) <= set(tags):
                    return resolve(tags, asked, str(path)).columns
    return resolve(tags, asked, str(files[0].parent)).columns if tags else {}


def _chunks(files: list[Path], found: Mapping[str, str], tally: Tally) -> Iterator[Readings]:
    merge, columns = RowMerge(tally, one_writer=True), dict(found)
    tally.names = columns
    for path in files:
        tags: dict[str, int] = {}
        try:
            with open_regular(path) as file:
                reader = ScalarFile(file, tags)
                for scalars in reader.stretches():
                    for number, why in reader.bad:
                        tally.cannot_read(number, f"{path.name}: {why}")
                    reader.bad.clear()
                    find_more(tags, columns)
                    yield from merge.push(_rows(scalars, tags, columns))
                if reader.problem is not None:
                    tally.cannot_read(reader.records + 1, f"{path.name}: {reader.problem.what}")
        except OSError as error:
            tally.cannot_read(1, f"{path.name} can't be read: {error.strerror or error}")
        merge.writer_ended()
    yield from merge.finish()


def _rows(scalars: Scalars, tags: Mapping[str, int], columns: Mapping[str, str]) -> Rows:
    """A row for each scalar whose tag is a column."""
    numbers = {ours: tags[theirs] for ours, theirs in columns.items() if theirs in tags and ours in _TAKEN}
    taken = np.isin(scalars.tags, list(numbers.values())) & (scalars.steps >= 0)
    found = scalars.tags[taken]
    there = {ours: found == number for ours, number in numbers.items()}
    return Rows(
        steps=scalars.steps[taken],
        values=dict.fromkeys(there, scalars.values[taken]) | {"time_unix_s": scalars.times_unix_s[taken]},
        there=there | {"time_unix_s": np.ones(len(found), np.bool_)},
        lanes=found,
    )
