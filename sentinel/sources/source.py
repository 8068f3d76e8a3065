"""What every reader of a file gives: the judge's columns in chunks, and what a person should know about the reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sentinel.judge.readings import COLUMNS, Readings
from sentinel.vocabulary.sample import Record

__all__ = ["CHUNK_ROWS", "Chunks", "ColumnSource", "FileSource", "Tally"]

CHUNK_ROWS = 1 << 16
"""Rows that are in memory at a time; also those that may be held back to be joined with others of their step."""
_SHOWN = 20
_OTHERS = 100_000
"""Records beside the samples that are kept: a table may have a validation loss in each of its ten million rows."""


class ColumnSource(Protocol):
    """A series of samples that can be read from the beginning, any number of times."""

    path: Path
    format: str
    """journal, csv, parquet, jsonl, wandb, huggingface_trainer_state or tensorboard."""

    fields: tuple[str, ...]
    """What of a sample is given out: the judge's COLUMNS, and of CARRIED what is asked for before iterating."""

    @property
    def samples(self) -> int:
        """Samples given out so far."""

    @property
    def unreadable(self) -> int:
        """Lines, rows or records that could not be read, so far."""

    @property
    def first_unreadable(self) -> list[tuple[int, str]]:
        """The first of them: number of the line (from 1), and why."""

    @property
    def others(self) -> list[Record]:
        """What the source tells beside its samples, so far: validations, checkpoints, starts and ends."""

    @property
    def notes(self) -> list[str]:
        """What a person should know of how the source was read, as sentences."""

    def __iter__(self) -> Iterator[Readings]:
        """The samples in order, a chunk at a time; each chunk is of one attempt."""


@dataclass(slots=True)
class Tally:
    """What is counted while a source is read."""

    fields: tuple[str, ...] = COLUMNS
    """What of a sample is wanted."""

    samples: int = 0
    unreadable: int = 0
    first_unreadable: list[tuple[int, str]] = field(default_factory=list)
    others: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    others_left_out: int = 0

    @property
    def shows_more(self) -> bool:
        """Whether the next thing that can't be read will be shown, and not only counted."""
        return len(self.first_unreadable) < _SHOWN

    def cannot_read(self, line: int, why: str) -> None:
        """Counts a line, row or record that can't be read."""
        self.unreadable += 1
        if self.shows_more:
            self.first_unreadable.append((line, why))
            self.first_unreadable.sort(key=lambda shown: shown[0])

    def keep(self, record: Record) -> None:
        """Takes a record that is no sample; past the first of a great many they are only counted."""
        if len(self.others) < _OTHERS:
            self.others.append(record)
        else:
            self.others_left_out += 1

    def note(self, sentence: str) -> None:
        """Takes a sentence for the person who asked; once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


Chunks = Callable[[Tally], Iterator[Readings]]


class FileSource:
    """A ColumnSource from one function that reads the file and keeps the tally."""

    def __init__(self, path: Path, file_format: str, chunks: Chunks) -> None:
        self.path = path
        self.format = file_format
        self.fields: tuple[str, ...] = COLUMNS
        self._chunks = chunks
        self._tally = Tally()

    @property
    def samples(self) -> int:
        return self._tally.samples

    @property
    def unreadable(self) -> int:
        return self._tally.unreadable

    @property
    def first_unreadable(self) -> list[tuple[int, str]]:
        return self._tally.first_unreadable

    @property
    def others(self) -> list[Record]:
        return self._tally.others

    @property
    def notes(self) -> list[str]:
        return self._tally.notes

    def __iter__(self) -> Iterator[Readings]:
        self._tally = tally = Tally(fields=self.fields)
        for chunk in self._chunks(tally):
            tally.samples += len(chunk)
            yield chunk
        if tally.others_left_out:
            tally.note(
                f"{tally.others_left_out} validations, checkpoints and starts past the first {_OTHERS} were left out"
            )
