"""nanoGPT's `iter 10: loss 3.1680, time 444.91ms`, and whoever else writes a step and a loss on one line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from sentinel.adapters.sources.checkpoint_lines import checkpoint_events
from sentinel.adapters.sources.events import Evaluated, Event, Reading
from sentinel.adapters.sources.numerals import number, whole
from sentinel.adapters.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["Generic", "NanoGpt"]

_VALUE = r"\s*[:= ]\s*([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)\b)"
_ITER = re.compile(r"\biter (\d+)\s*:\s*(?:train )?loss", re.IGNORECASE)
_STEP = re.compile(
    r"(?:^|[\s\[(|,{'\":])(?:global[_ ]?step|step|steps|iteration|iter|update|batch)(?:\(train\))?['\"]?"
    r"\s*[:=#]?\s*\[?\s*(\d[\d,]*)(?:\s*(?:/|of)\s*(\d[\d,]*))?",
    re.IGNORECASE,
)
_LOSS = re.compile(rf"(?<![\w/])(?:train(?:ing)?[_ /]?)?(?:lm[_ ])?loss['\"]?{_VALUE}", re.IGNORECASE)
_VALID = re.compile(rf"\b(?:val|valid|validation|eval)[_ /]?loss['\"]?{_VALUE}", re.IGNORECASE)
_NORM = re.compile(rf"\b(?:grad(?:ient)?[_ ]?)?norm['\"]?{_VALUE}", re.IGNORECASE)
_LR = re.compile(rf"\b(?:lr|learning[_ ]rate)['\"]?{_VALUE}", re.IGNORECASE)
_MS = re.compile(r"\b(?:time|dt)\s*[:= ]\s*([\d.]+) ?ms|\|\s*([\d.]+) ms\b")
_JSON = ('{"', "[{")
_LONGEST = 4_000
"""Characters of a line that is looked at: these patterns are tried at every place of it."""


class Generic:
    """Any line with a step and a loss. Recognised only where no format of its own is."""

    name: ClassVar[str] = "generic"
    one_writer: ClassVar[bool] = False
    _sign: ClassVar[re.Pattern[str]] = _STEP

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = False

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if len(line) > _LONGEST or ("oss" not in line and "OSS" not in line):
            return checkpoint_events(line)
        found = self._sign.search(line)
        if found is None:
            return self._validated(line)
        step = whole(found[1])
        if step is None:
            raise LineError("a step that is no number")
        head, rest = line[: found.start()], line[found.end(1) :]
        at, told = time_of(head), _LOSS.search(rest)
        if told is None and not line.lstrip().startswith(_JSON) and (told := _LOSS.search(head)) is not None:
            rest = head  # the step stands last
        valid = _VALID.search(rest)
        if told is None:
            return self._validated(line)
        if valid is not None and "train loss" in rest and "time" not in rest:
            return self._validated(line)  # nanoGPT's estimates, both of them over many batches
        loss = number(told[1].replace(",", ""))
        if loss is None:
            raise LineError("a loss that is no number")
        self._from_zero |= step == 0
        if self._from_zero:
            self.note = "steps are counted from 0 in the log: its step N is update N + 1 here"
        fields: dict[str, Any] = {"time_unix_s": at}
        for field, pattern in (("grad_norm", _NORM), ("lr", _LR)):
            if (value := pattern.search(rest)) is not None:
                fields[field] = number(value[1].replace(",", ""))
        if (pace := _MS.search(rest)) is not None:
            milliseconds = number(pace[1] or pace[2])
            fields["step_time_s"] = None if milliseconds is None else milliseconds / 1000
        total = whole(found[2]) if found.re.groups > 1 and found[2] else None
        return (Reading(step + self._from_zero, loss, rank_of(head), fields, total),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()

    def _validated(self, line: str) -> Sequence[Event] | None:
        """A validation loss with its step: nanoGPT's `step 0: train loss 4.28, val loss 4.28`."""
        found = _STEP.search(line)
        if found is None or (valid := _VALID.search(line)) is None:
            return None
        step, loss = whole(found[1]), number(valid[1].replace(",", ""))
        if step is None or loss is None or math.isinf(loss):
            return None
        return (Evaluated(loss=loss, step=step, time_unix_s=time_of(line[: found.start()])),)


class NanoGpt(Generic):
    """nanoGPT and its descendants. Its iteration 0 is the first update: one is added where a log begins with 0."""

    name: ClassVar[str] = "nanogpt"
    _sign: ClassVar[re.Pattern[str]] = _ITER
