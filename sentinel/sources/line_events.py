"""The events that one line of a log reports, before the attempt that they belong to is known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.sources.alike_lines import AlikeLines
from sentinel.sources.column_names import meaning
from sentinel.sources.line_text import number, time_of, whole
from sentinel.sources.step_kinds import StepKinds
from sentinel.sources.two_jobs import TwoJobs
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import COUNT, UNIX_SECONDS

FROM_ZERO = "steps are counted from 0 in the log: its step N is update N + 1 here"


@dataclass(slots=True)
class LineReading:
    """One step's readings, as one process wrote them."""

    step: int  # completed updates
    loss: float  # nats; nan also where the trainer left it out because it was not a number
    rank: str | None = None  # the process that wrote it; None where the line does not name one
    # Fields of Sample by their names, except attempt, global_step, loss and loss_spread; others are dropped.
    fields: dict[str, Any] = field(default_factory=dict)
    total_steps: int | None = None  # the M of `N/M`

    @property
    def time_unix_s(self) -> float:
        """When the line was written; nan where it has no time."""
        return float(self.fields.get("time_unix_s", math.nan))


@dataclass(slots=True)
class ProgramStarted:
    """A start of the program."""

    # Fields of RunStarted by their names. `resumed_from` is there where the log names it, None for "from scratch".
    facts: Mapping[str, Any] = field(default_factory=dict)
    # True: the program has started again. False: a checkpoint was loaded, which may have other reasons.
    certain: bool = False
    time_unix_s: float = math.nan
    interval: int | None = None  # steps between two lines of readings, where the settings name it


@dataclass(slots=True)
class Evaluated:
    """A validation loss; step None is "after the last step"."""

    loss: float
    step: int | None = None
    time_unix_s: float = math.nan


@dataclass(slots=True)
class Saved:
    """A complete checkpoint."""

    step: int
    tag: str
    time_unix_s: float = math.nan


@dataclass(slots=True)
class ProgramEnded:
    """The program reports that it has done all its steps."""

    time_unix_s: float = math.nan


Event = LineReading | ProgramStarted | Evaluated | Saved | ProgramEnded


class Decoder:
    note = ""  # what a reader of the numbers has to know; a sentence, or empty
    takes_columns = False  # whether names that the user gives are looked for
    names: Mapping[str, str] = {}  # names that the user gives: theirs to the field of ours
    kinds = StepKinds()  # of the lines, where a step may stand in several kinds of them; else it stays empty

    jobs = TwoJobs("epochs", repeats=True)  # where a format places its lines by epochs; else it stays empty
    # Words of which one stands in each line that has an event or changes what the next line is read as. The empty word
    # stands in all.
    words: tuple[str, ...] = ("",)
    within = False  # whether a record over several lines is open: then any line may be of it

    @property
    def notes(self) -> list[str]:
        return [note for note in (self.note, self.kinds.note) if note]

    def ask(self, columns: Mapping[str, str]) -> None:
        """Takes the names that the user gives, field to name."""
        self.names = {theirs: ours for ours, theirs in columns.items()}

    def learn(self, other: Decoder) -> None:
        """Takes over what another decoder of the same log has found out about its kinds of lines."""

    def decode(self, line: str) -> Sequence[Event] | None:
        """The events of the line; None for a line of another program. LineError: a damaged line of this format."""
        raise NotImplementedError

    def end(self) -> Sequence[Event]:
        """What was buffered of a record over several lines."""
        return ()

    def may_read(self, line: str) -> bool:
        """Whether the line may be anything to this format; quickly."""
        return self.within or any(word in line for word in self.words)

    def is_plain(self, line: str) -> bool:  # noqa: ARG002 - of this format none is
        """Whether a line of readings is read by itself, and those that differ in their numbers alone are read alike."""
        return False

    def steps_of(self, lines: AlikeLines) -> Sequence[int] | None:
        """The updates of plain lines that follow the last one; None where one of them has to be compared with others
        before it is known what it says."""
        raise NotImplementedError

    def pass_over(self, lines: AlikeLines, steps: Sequence[int]) -> None:
        """Takes note of lines that were read by `steps_of`."""


def checked(event: Event) -> Event:
    """The event, of a step with fields of Sample alone. LineError where one of its counts or its time is impossible."""
    if event.time_unix_s not in UNIX_SECONDS:
        raise LineError(f"the time should be {UNIX_SECONDS}, not {event.time_unix_s:g}")
    if isinstance(event, LineReading):
        for name in BESIDE:
            event.fields.pop(name, None)
        if "skipped" in event.fields:
            event.fields["skipped"] = bool(event.fields["skipped"])
        counts: Iterable[Any] = (event.step, event.total_steps, *event.fields.values())
    elif isinstance(event, ProgramStarted):
        counts = (value for key, value in event.facts.items() if key != "seed")
    else:
        counts = (getattr(event, "step", None),)
    for count in counts:
        if type(count) is int and count not in COUNT:
            raise LineError(f"a count should be {COUNT}, and is {'negative' if count < 0 else 'larger'}")
    return event


COUNTS = frozenset({"step", "consumed_samples", "consumed_tokens", "global_batch_samples", "seqlen"})


def fields_of(pairs: Iterable[tuple[str, Any]], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The fields among the names of a line; None for a value that is not a number. Of several names of one field the
    preferred one that has a number is taken: the user's (`names`) before all."""
    fields: dict[str, Any] = {}
    ranks: dict[str, int] = {}
    if names:
        pairs = _renamed(pairs, names)
    for name, value in pairs:
        known = _names[name] if name in _names else _known(name)
        if known is None:
            continue
        ours, rank, read = known
        if ours in ranks and rank > ranks[ours] and fields[ours] is not None:
            continue
        if type(value) is not str:
            value = repr(value) if type(value) in (int, float) else ""  # noqa: PLW2901 - the same value as text
        found = read(value)
        if found is not None or ours not in ranks:
            fields[ours] = found
            ranks[ours] = rank
    return fields


Known = tuple[str, int, Callable[[str], float | None]]  # a field, the place among its names, how its value is read
_names: dict[str, Known | None] = {}  # of those that were met; a dict is faster than a cached function
_MOST_NAMES, _LONGEST_NAME = 4096, 100


def _renamed(pairs: Iterable[tuple[str, Any]], names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The user's names as sentinel's, without other names of the same fields."""
    for name, value in pairs:
        known = _known(name)
        if name in names:
            yield names[name], value
        elif known is None or known[0] not in names.values():
            yield name, value


def _known(name: str) -> Known | None:
    ours, rank = meaning("_".join(name.replace("_", " ").replace("-", " ").split())) or ("", 0)
    read = _READ_BY.get(ours)
    if ours == "step_time_s" and ("ms" in name or name.rstrip().endswith("iteration")):
        read = _milliseconds
    known = None if read is None else (ours, rank, read)
    if len(_names) >= _MOST_NAMES:
        _names.clear()
    if len(name) <= _LONGEST_NAME:
        _names[name] = known
    return known


def _seconds(text: str) -> float | None:
    return number(text.partition("/")[0])  # Primus appends the mean of the last iterations: `5444.9/5450.1`


def _milliseconds(text: str) -> float | None:
    read = _seconds(text)
    return None if read is None else read / 1000


BESIDE = ("step", "validation_loss", "nan_iterations")  # read of lines, and no field of a sample
_READ_BY: Mapping[str, Callable[[str], float | None]] = {
    **dict.fromkeys(COUNTS | {"skipped", "nan_iterations"}, whole),
    **dict.fromkeys(("loss", "validation_loss", "grad_norm", "lr", "loss_scale", "epoch"), number),
    **dict.fromkeys(("adam_variance_l1", "adam_variance_max"), number),
    "step_time_s": _seconds,
}


CHECKPOINT_WORDS = ("heckpoint", "esum")  # of which a line of `checkpoint_events` has one
_STEP = r"(?:global[_ ]?step|step|iteration|iter|updates?|ba)\s*[:=_@-]?\s*(\d{1,15})"
_LOADED = re.compile(rf"\b(?:load|restor|resum)(?:ed|ing|es|e)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_SAVED = re.compile(rf"\b(?:saved|finished saving|wrote)\b[^|]{{0,400}}?{_STEP}", re.IGNORECASE)
_UPDATES = re.compile(r"(?:loaded|saved) checkpoint .{0,400}?@ (\d{1,15}) updates", re.IGNORECASE)
_LONGEST_SENTENCE = 2_000


def checkpoint_events(line: str) -> Sequence[Event] | None:
    """The checkpoint that was loaded or saved, in a trainer's own words; None where the line is about neither."""
    if ("heckpoint" not in line and "esum" not in line) or len(line) > _LONGEST_SENTENCE:
        return None
    saved = _UPDATES.search(line) or _SAVED.search(line) if "aved" in line else None
    found = saved or _UPDATES.search(line) or _LOADED.search(line)
    step = None if found is None else whole(found[1])
    if step is None:
        return None
    if saved is not None:
        return (Saved(step=step, tag=f"global_step{step}", time_unix_s=time_of(line)),)
    return (ProgramStarted(facts={"resumed_from": step or None}, time_unix_s=time_of(line)),)
