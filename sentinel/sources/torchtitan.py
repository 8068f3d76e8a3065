"""torchtitan: `step: 14  loss:  3.24405  grad_norm:  0.8319  memory: … tps: 7,282 …`, once, or once per rank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from sentinel.sources.checkpoint_lines import checkpoint_events
from sentinel.sources.events import Announced, Evaluated, Event, Reading
from sentinel.sources.numerals import number, whole
from sentinel.sources.plain_words import evaluates
from sentinel.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["Torchtitan"]

_STEP = re.compile(r"\bstep:\s*(\d+(?:,\d{3})*)(?:\s*/\s*(\d+(?:,\d{3})*))?\s+(?=\w+:)")
_FIELD = re.compile(r"(\w{1,64}):\s*(\S{1,64})")
_STARTS = re.compile(r"\bTraining starts at step (\d+)")


class Torchtitan:
    """torchtitan's console."""

    name: ClassVar[str] = "torchtitan"
    one_writer: ClassVar[bool] = False

    def __init__(self) -> None:
        self.note = ""

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if "step:" not in line or "loss:" not in line:
            if (starts := _STARTS.search(line)) is not None and (first := whole(starts[1])) is not None:
                # "step 1" is the first of a run from scratch, and not a resumed one
                before = first - 1 if first > 0 else 0
                return (Announced(facts={"resumed_from": before or None}, time_unix_s=time_of(line)),)
            return checkpoint_events(line)
        found = _STEP.search(line)
        if found is None:
            return None
        head, step = line[: found.start()], whole(found[1])
        told = dict(_FIELD.findall(line[found.end() :]))
        name = next((n for n in ("loss", "global_avg_loss", "train_loss") if n in told), None)
        if name is None and "val_loss" in told and (value := number(told["val_loss"].rstrip(","))) is not None:
            return (Evaluated(loss=value, step=step, time_unix_s=time_of(head)),)
        loss = None if name is None else number(told[name].rstrip(","))
        if loss is None or step is None:
            raise LineError("a step without its loss")
        at = time_of(head)
        if head.rstrip().endswith("validate") or evaluates(head):
            return (Evaluated(loss=loss, step=step, time_unix_s=at),)
        fields: dict[str, Any] = {"time_unix_s": at}
        for field, names in (("grad_norm", ("grad_norm", "grad")), ("lr", ("lr",))):  # lingua writes `grad`
            if (text := next((told[n] for n in names if n in told), None)) is not None:
                fields[field] = number(text.rstrip(","))
        total = whole(found[2]) if found[2] else None
        return (Reading(step, loss, rank_of(head), fields, total),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()
