"""What every reader of a file gives: the judge's columns in chunks, and what a person should know about the reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.judge.readings import COLUMNS, Readings
from sentinel.vocabulary.sample import Record

CHUNK_ROWS = 1 << 16  # rows in memory at a time; also those that may wait to be joined with others of their step
_SHOWN = 20
_OTHERS = 100_000  # records beside the samples that are kept: ten million rows may each have a validation loss


@dataclass(slots=True, eq=False)
class Tally:
    """What is counted while a source is read."""

    # Fields of a sample that are given: the judge's COLUMNS, and of CARRIED what is named before iterating.
    fields: tuple[str, ...] = COLUMNS
    samples: int = 0
    unreadable: int = 0  # lines, rows or records that could not be read, so far
    # The first of them: number of the line (from 1), and why.
    first_unreadable: list[tuple[int, str]] = field(default_factory=list)
    # Records that are not samples, so far: validations, checkpoints, starts and ends.
    others: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what a person should know of how the source was read, as sentences
    others_left_out: int = 0

    explains: bool = False  # whether `names` are looked for in lines of text; set before iterating
    names: Mapping[str, str] = field(default_factory=dict)  # field to the column, key or words that it was read from
    # How many lines or rows were what: steps, evaluations, repeated, left_out, unreadable, other.
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def shows_more(self) -> bool:
        """Whether the next unreadable line will be shown, and not only counted."""
        return len(self.first_unreadable) < _SHOWN

    def cannot_read(self, line: int, why: str) -> None:
        self.unreadable += 1
        if self.shows_more:
            self.first_unreadable.append((line, why))
            self.first_unreadable.sort(key=lambda shown: shown[0])

    def keep(self, record: Record) -> None:
        """Takes a record that is not a sample; after the first hundred thousand they are only counted."""
        if len(self.others) < _OTHERS:
            self.others.append(record)
        else:
            self.others_left_out += 1

    @property
    def count(self) -> str:
        """How many samples there are, and the first line that can't be read, in words."""
        samples = f"{self.samples} sample{'s' * (self.samples != 1)}"
        first = next((f", the first is line {line}: {why}" for line, why in self.first_unreadable), "")
        return f"{samples}, and {self.unreadable} lines that can't be read{first}" if self.unreadable else samples

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


class ColumnSource(Tally):
    """A series of samples that can be read from the beginning, any number of times; its tally is of the last time.
    `format`: journal, csv, parquet, jsonl, wandb, huggingface_trainer_state, tensorboard, or the name of a log
    format."""

    def __init__(self, path: Path, file_format: str, chunks: Callable[[Tally], Iterator[Readings]]) -> None:
        super().__init__()
        self.path, self.format = path, file_format
        self._chunks = chunks

    def __iter__(self) -> Iterator[Readings]:
        """The samples in order, a chunk at a time; each chunk is of one attempt."""
        Tally.__init__(self, fields=self.fields, explains=self.explains)
        for chunk in self._chunks(self):
            self.samples += len(chunk)
            yield chunk
        if left_out := self.others_left_out:
            self.note(f"{left_out} validations, checkpoints and starts past the first {_OTHERS} were left out")
