"""Lines of `name: value | name: value |`, as Megatron and its relatives write them, and NeMo's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sentinel.sources.line_events import Evaluated, Event, Reading, checkpoint_events
from sentinel.sources.line_text import number, rank_of, time_of, whole
from sentinel.vocabulary.errors import LineError

__all__ = ["LOSS", "NAN", "SCALE", "SKIPPED", "STEP", "Fields", "NeMo", "fields_of"]

LOSS, SCALE, STEP = "loss", "loss_scale", "step"
SKIPPED, NAN = "number of skipped iterations", "number of nan iterations"

Fields = dict[str, Any]
"""Fields of Sample by their names, and LOSS, SKIPPED, NAN, STEP; None for text that is not a number."""


def _seconds(text: str) -> float | None:
    """Primus appends the mean of the last iterations: `5444.9/5450.1`."""
    return number(text.partition("/")[0])


def _milliseconds(text: str) -> float | None:
    read = _seconds(text)
    return None if read is None else read / 1000


Reads = Callable[[str], Any]
_KNOWN: dict[str, tuple[str, Reads]] = {
    "consumed samples": ("consumed_samples", whole),
    "consumed train samples": ("consumed_samples", whole),
    "consumed tokens": ("consumed_tokens", whole),
    "elapsed time per iteration (ms)": ("step_time_s", _milliseconds),
    "elapsed time per iteration ms": ("step_time_s", _milliseconds),
    "elapsed time per iteration (s)": ("step_time_s", _seconds),
    "elapsed time per iteration s": ("step_time_s", _seconds),
    "elapsed time per iteration": ("step_time_s", _milliseconds),
    "train step timing in s": ("step_time_s", number),
    "learning rate": ("lr", number),
    "lr": ("lr", number),
    "global batch size": ("global_batch_samples", whole),
    "batch size": ("global_batch_samples", whole),
    "loss scale": (SCALE, number),
    "grad norm": ("grad_norm", number),
    "gradient norm": ("grad_norm", number),
    "total grad norm": ("grad_norm", number),
    "actual seqlen": ("seqlen", whole),
    "seqlen": ("seqlen", whole),
    "curriculum seqlen": ("seqlen", whole),
    "number of skipped iterations": (SKIPPED, whole),
    "number of nan iterations": (NAN, whole),
    "global step": (STEP, whole),
    "epoch": ("epoch", number),
}
_LOSSES = (
    *("lm loss", "lm loss training", "reduced train loss", "loss", "total loss", "train loss", "training loss"),
    "language model loss",
)
"""The first of them that a line has is taken."""

_KNOWN |= {name: (f"{LOSS} {rank}", number) for rank, name in enumerate(_LOSSES)}
_RANKED = [f"{LOSS} {rank}" for rank in range(len(_LOSSES))]

_names: dict[str, tuple[str, Reads] | None] = {}
"""The meaning of each spelling of a name that was met."""

_MOST_SPELLINGS = 4096
_LONGEST_SPELLING = 100


def _meaning(spelling: str) -> tuple[str, Reads] | None:
    name = " ".join(spelling.lower().replace("_", " ").replace("-", " ").split())
    if len(_names) >= _MOST_SPELLINGS:
        _names.clear()
    found = _KNOWN.get(name)
    if len(spelling) <= _LONGEST_SPELLING:
        _names[spelling] = found
    return found


def fields_of(segments: list[str]) -> Fields:
    """The known fields of the segments between bars: a name, `:`, `=` or (the oldest lines) a space, then a value."""
    fields: Fields = {}
    for segment in segments:
        spelling, sign, text = segment.rpartition(":")
        if not sign:
            spelling, sign, text = segment.rpartition("=")
            if not sign:
                spelling, _, text = segment.strip().rpartition(" ")
        known = _names[spelling] if spelling in _names else _meaning(spelling)
        if known is not None:
            name, reads = known
            fields[name] = reads(text)
    for ranked in _RANKED:
        if ranked in fields:
            value = fields.pop(ranked)
            fields.setdefault(LOSS, value)
    return fields


_ITERATION = re.compile(r"\biteration:?\s*(\d[\d,]*)\s*/\s*(\d[\d,.]*[KMBG]?)", re.IGNORECASE)
_VAL_LOSS = re.compile(r"\|\s*val(?:idation)?_loss:\s*([^\s|]+)")


class NeMo:
    """`Training epoch 0, iteration 1/19 | … | global_step: 1 | reduced_train_loss: … | consumed_samples: …`.

    NeMo counts from 0 (at global_step 1 the samples of two steps are consumed): one is added.
    """

    def __init__(self) -> None:
        self.note = "NeMo counts steps from 0: its step N is update N + 1 here"
        self._validated: float | None = None

    def decode(self, line: str) -> Sequence[Event] | None:
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
        return ()
