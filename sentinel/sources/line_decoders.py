"""Decoders that read a log format from its description as data: one line for a step, or a block of lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.sources.alike_lines import AlikeLines
from sentinel.sources.line_events import (
    CHECKPOINT_WORDS,
    COUNTS,
    FROM_ZERO,
    Decoder,
    Evaluated,
    Event,
    LineReading,
    ProgramStarted,
    checkpoint_events,
    fields_of,
)
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.sources.megatron_lines import fields_between_bars
from sentinel.vocabulary.errors import LineError

_MOST_ITEMS = 2_000  # lines of a block that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePattern:
    """A format that writes a step's readings on one line."""

    line: re.Pattern[str]
    """Groups, all but the first optional:

    step, total        the step, and the number of steps
    loss               in nats; a format with `pairs` or `bars` has the loss there
    validation         matches where the loss is a validation loss
    iteration          several iterations make a step; the last of them is marked "(step)"
    epoch, epochs, per_epoch    steps begin again in each epoch; `per_epoch` is the number of them
    head, time         texts with the rank and the time; without them, the text before the match
    a field of Sample  its value, such as lr
    """

    contains: tuple[str, ...] = ()  # words that each line of readings has; other lines may be about checkpoints
    # One pair of name and value; all pairs after the step are read, by the names in `column_names`.
    pairs: re.Pattern[str] | None = None
    bars: bool = False  # whether the fields follow the step between bars, as in Megatron's lines
    validation: re.Pattern[str] | None = None  # a line with a validation loss (group `loss`) of the step before it
    # Matches the text before the step where the loss is a validation loss.
    validation_head: re.Pattern[str] | None = None
    starts_at: re.Pattern[str] | None = None  # a line with the step at which training starts (group 1)
    # A line that says that this process has no loss; group 1 is the rank that has it.
    not_visible: re.Pattern[str] | None = None
    start_words: tuple[str, ...] = ()  # words of which a line of `starts_at` or `not_visible` has one
    # Words of which a line about checkpoints has one; empty where such lines are not read.
    checkpoint_words: tuple[str, ...] = CHECKPOINT_WORDS
    note: str = ""  # what a reader of the numbers has to know; a sentence, or empty


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPattern:
    """A format that writes a header with the step, then one reading a line, named as in `column_names`."""

    sign: str  # what every header contains
    header: re.Pattern[str]  # groups `step` and `total`
    item: re.Pattern[str]  # groups `name` and `value`
    validation: re.Pattern[str]  # names of validation losses


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    name: str  # as users write it in the configuration
    sample: str  # step 7 with a loss of 2.5, in the trainer's form
    # How it is written, as a pattern; a decoder class where a pattern cannot describe it.
    reads: LinePattern | BlockPattern | type[Decoder]
    traps: str = ""  # what a reader of the numbers would not expect, for docs/LOG_FORMATS.md
    # Whether one process writes the lines: the same step again, with another loss, is then a restart.
    one_writer: bool = False

    def decoder(self) -> Decoder:
        if isinstance(self.reads, LinePattern):
            return _LineDecoder(self.reads)
        return _BlockDecoder(self.reads) if isinstance(self.reads, BlockPattern) else self.reads()


class _LineDecoder(Decoder):
    def __init__(self, pattern: LinePattern) -> None:
        self.note = pattern.note
        self._pattern = pattern
        self.takes_columns = pattern.pairs is not None
        self._from_zero = self._epochs_from_zero = False
        self._last = (0, 0)  # step and iteration of the last line
        self.words = ("",)
        if pattern.contains:
            self.words = (pattern.contains[0], *pattern.start_words, *pattern.checkpoint_words)

    def is_plain(self, line: str) -> bool:  # noqa: ARG002 - all lines are, or none
        return not {"iteration", "per_epoch"} & self._pattern.line.groupindex.keys()

    def steps_of(self, lines: AlikeLines) -> Sequence[int] | None:
        steps = lines.column("step")
        return (
            None
            if None in steps or (0 in steps and not self._from_zero)
            else [step + self._from_zero for step in steps]
        )

    def decode(self, line: str) -> Sequence[Event] | None:
        pattern = self._pattern
        if not all(word in line for word in pattern.contains):
            return self._of_no_step(line)
        if pattern.validation is not None and (found := pattern.validation.search(line)) is not None:
            loss = number(found["loss"])
            return None if loss is None else (Evaluated(loss=loss, time_unix_s=time_of(line[: found.start()])),)
        found = pattern.line.search(line)
        if found is None:
            return None
        groups = found.groupdict()
        step, head = whole(groups["step"]), groups.get("head") or line[: found.start()]
        fields = self._fields(groups, line[found.end() :])
        loss, validated = fields.pop("loss", None), fields.pop("validation_loss", None)
        at = fields["time_unix_s"] = time_of(groups.get("time") or head)
        if step is None or (loss is None and validated is None):
            raise LineError("a step without its loss")
        evaluates = pattern.validation_head is not None and pattern.validation_head.search(head)
        if loss is None or groups.get("validation") or evaluates:
            of = None if "per_epoch" in groups else step  # an evaluation counts its own batches
            return (Evaluated(loss=loss if loss is not None else validated, step=of, time_unix_s=at),)
        if "iteration" in groups and not self._ends_step(step, whole(groups["iteration"]), line):
            return ()
        total = whole(groups["total"]) if groups.get("total") else None
        if "per_epoch" in groups:
            step, total = self._over_epochs(step, groups)
        if step == 0 and not self._from_zero:
            self._from_zero = True
            self.note = f"{self.note}; {FROM_ZERO}" if self.note else FROM_ZERO
        return (LineReading(step + self._from_zero, loss, rank_of(head), fields, total),)

    def _of_no_step(self, line: str) -> Sequence[Event] | None:
        pattern = self._pattern
        if pattern.starts_at is not None and (found := pattern.starts_at.search(line)) is not None:
            first = whole(found[1])
            if first is not None:  # "step 1" is the first of a run from scratch
                return (ProgramStarted(facts={"resumed_from": max(first - 1, 0) or None}, time_unix_s=time_of(line)),)
        if pattern.not_visible is not None and (found := pattern.not_visible.search(line)) is not None:
            self.note = f"the trainer says that the loss is not visible in this log: rank {found[1]} has it (LOG_RANK)"
            return None
        return checkpoint_events(line) if any(word in line for word in pattern.checkpoint_words) else None

    def _fields(self, groups: Mapping[str, str | None], rest: str) -> dict[str, Any]:
        if self._pattern.bars:
            return fields_between_bars(rest.split("|"))
        if self._pattern.pairs is not None:
            return fields_of(((name, text.rstrip(",")) for name, text in self._pattern.pairs.findall(rest)), self.names)
        texts = {name: text for name, text in groups.items() if text is not None and name not in _NOT_FIELDS}
        return {name: whole(text) if name in COUNTS else number(text) for name, text in texts.items()}

    def _ends_step(self, step: int, iteration: int | None, line: str) -> bool:
        if iteration is None:
            raise LineError("an iteration that is not a number")
        last_step, last_iteration = self._last
        self._last = (step, iteration)
        return step > 0 and ("(step)" in line or step != last_step or iteration <= last_iteration)

    def _over_epochs(self, step: int, groups: Mapping[str, str | None]) -> tuple[int, int | None]:
        """The step and the number of steps, counted over all epochs."""
        epoch, epochs, steps = (whole(groups.get(name) or "") for name in ("epoch", "epochs", "per_epoch"))
        if epoch is None or steps is None:
            raise LineError("an epoch that is not a number")
        self._epochs_from_zero |= epoch == 0
        return step + steps * (epoch - (not self._epochs_from_zero)), None if epochs is None else epochs * steps


_NOT_FIELDS = ("step", "total", "validation", "iteration", "epochs", "per_epoch", "head", "time")


class _BlockDecoder(Decoder):
    """A block is complete where the next begins, or where the log pauses."""

    takes_columns = True

    def __init__(self, pattern: BlockPattern) -> None:
        self._pattern = pattern
        # Step, total steps, rank and time of the header.
        self._open: tuple[int, int | None, str | None, float] | None = None
        self._items: dict[str, str] = {}
        self.words = (pattern.sign, *CHECKPOINT_WORDS)

    @property
    def within(self) -> bool:  # type: ignore[override]
        return self._open is not None

    def decode(self, line: str) -> Sequence[Event] | None:
        found = self._pattern.header.search(line) if self._pattern.sign in line else None
        if found is not None:
            events = self.end()
            step, total, head = whole(found["step"]), found.groupdict().get("total"), line[: found.start()]
            if step is None:
                raise LineError("a step that is not a number")
            self._open = step, whole(total) if total else None, rank_of(head), time_of(head)
            return events
        item = self._pattern.item.match(line) if self._open is not None else None
        if item is None:
            return checkpoint_events(line)
        if len(self._items) < _MOST_ITEMS:
            name = re.split(r"\s{2,}|\t", item["name"].strip())[-1]  # behind a logger's columns
            self._items.setdefault(name, item["value"])
        return ()

    def end(self) -> Sequence[Event]:
        """The events of the open block. A block without a loss reports memory or speed."""
        opened, items = self._open, self._items
        self._open, self._items = None, {}
        if opened is None:
            return ()
        step, total, rank, at = opened
        fields = fields_of(((name.removeprefix("Train "), text) for name, text in items.items()), self.names)
        loss, _ = fields.pop("loss", None), fields.pop("step", None)  # the block's own step counts
        events: list[Event] = (
            [] if loss is None else [LineReading(step, loss, rank, {"time_unix_s": at} | fields, total)]
        )
        for name, text in items.items():
            if self._pattern.validation.search(name) and (value := number(text)) is not None:
                events.append(Evaluated(loss=value, step=step, time_unix_s=at))
                break
        return events
