"""nanotron and NeMo: bars as Megatron's, with their own names, units and counting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from sentinel.sources.bars import LOSS, NAN, SKIPPED, STEP, fields_of
from sentinel.sources.checkpoint_lines import checkpoint_events
from sentinel.sources.events import Evaluated, Event, Reading
from sentinel.sources.numerals import number, whole
from sentinel.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["Nanotron", "NeMo"]

_ITERATION = re.compile(r"\biteration:?\s*(\d[\d,]*)\s*/\s*(\d[\d,.]*[KMBG]?)", re.IGNORECASE)
_VAL_LOSS = re.compile(r"\|\s*val(?:idation)?_loss:\s*([^\s|]+)")


class Nanotron:
    """`iteration: N / M | consumed_tokens: 85.8G | … | lm_loss: … | lr: … | grad_norm: …`.

    Its numbers are rounded for people: tokens and times to three digits.
    """

    name: ClassVar[str] = "nanotron"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = "consumed tokens are rounded to three digits, as nanotron writes them"

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if "teration" not in line or "|" not in line or "reduced_train_loss" in line:
            return checkpoint_events(line)
        found = _ITERATION.search(line)
        if found is None or ("| lr:" not in line and "DP=" not in line):
            return None
        step, fields = whole(found[1]), fields_of(line[found.end() :].split("|"))
        loss = fields.pop(LOSS, None)
        if step is None or loss is None:
            raise LineError("an iteration without its loss")
        fields.pop(STEP, None)
        fields.pop(NAN, None)
        if fields.pop(SKIPPED, None):
            fields["skipped"] = True
        head = line[: found.start()]
        fields["time_unix_s"] = time_of(head)
        return (Reading(step, loss, rank_of(head), fields, whole(found[2])),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()


class NeMo:
    """`Training epoch 0, iteration 1/19 | … | global_step: 1 | reduced_train_loss: … | consumed_samples: …`.

    NeMo counts from 0 (at global_step 1 the samples of two steps are consumed): one is added.
    """

    name: ClassVar[str] = "nemo"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = "NeMo counts steps from 0: its step N is update N + 1 here"
        self._validated: float | None = None

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if ("train_loss" not in line and "val_loss" not in line) or "|" not in line:
            return checkpoint_events(line)
        if "reduced_train_loss" not in line:
            value = _VAL_LOSS.search(line)
            loss = number(value[1]) if value else None
            return None if loss is None else (Evaluated(loss=loss, time_unix_s=time_of(line)),)
        found = _ITERATION.search(line)
        fields = fields_of(line.replace(", ", "|").replace("]", "|").split("|"))
        zero_based = fields.pop(STEP, None)
        if zero_based is None:
            zero_based = whole(found[1]) if found else None
        loss = fields.pop(LOSS, None)
        if zero_based is None or loss is None:
            raise LineError("an iteration without its step or its loss")
        for name in (SKIPPED, NAN, "epoch"):
            fields.pop(name, None)
        head = line[: found.start()] if found else ""
        fields["time_unix_s"] = time_of(head)
        total = whole(found[2]) if found else None
        events: list[Event] = [Reading(zero_based + 1, loss, rank_of(head), fields, total and total + 1)]
        value = _VAL_LOSS.search(line)
        validated = None if value is None else number(value[1])
        if validated is not None and validated != self._validated:  # the newest is repeated on every line
            self._validated = validated
            events.append(Evaluated(loss=validated, time_unix_s=fields["time_unix_s"]))
        return events

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()
