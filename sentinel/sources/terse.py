"""Logs of Karpathy's trainers that have little more than numbers.

llm.c's main.log: `s:250 tel:5.91`, `s:250 trl:5.87 lr:0.0006 norm:1.2`. build-nanogpt's log.txt: `250 val 5.91`,
`250 hella 0.25`, `250 train 5.87`. Both count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from sentinel.sources.events import Evaluated, Event, Reading
from sentinel.sources.numerals import number, whole
from sentinel.sources.prefixes import rank_of, time_of
from sentinel.vocabulary.errors import LineError

__all__ = ["LlmC"]

_LINE = re.compile(
    r"(?:^|\s)(?:s:(?P<of_c>\d+) (?P<kind_c>trl|tel):|(?P<of_py>\d+) (?P<kind_py>train|val) )(?P<loss>\S+)(?P<rest>.*)$"
)
_LR, _NORM = re.compile(r"\blr:(\S+)"), re.compile(r"\bnorm:(\S+)")


class LlmC:
    """One line a step, another for a validation."""

    name: ClassVar[str] = "llm.c"
    one_writer: ClassVar[bool] = True

    def __init__(self) -> None:
        self.note = ""
        self._from_zero = False

    def decode(self, line: str) -> Sequence[Event] | None:
        """What the line tells."""
        if not ("l:" in line or " train " in line or " val " in line):
            return None
        found = _LINE.search(line)
        if found is None or (found["of_py"] and found["rest"].strip()):
            return None
        step, loss = whole(found["of_c"] or found["of_py"]), number(found["loss"])
        if step is None or loss is None:
            raise LineError("a step without its loss")
        head = line[: found.start()]
        if (found["kind_c"] or found["kind_py"]) in ("tel", "val"):
            return (Evaluated(loss=loss, step=step, time_unix_s=time_of(head)),)
        self._from_zero |= step == 0
        if self._from_zero:
            self.note = "steps are counted from 0 in the log: its step N is update N + 1 here"
        fields: dict[str, Any] = {"time_unix_s": time_of(head)}
        for field, pattern in (("lr", _LR), ("grad_norm", _NORM)):
            if (told := pattern.search(found["rest"])) is not None:
                fields[field] = number(told[1])
        return (Reading(step + self._from_zero, loss, rank_of(head), fields),)

    def end(self) -> Sequence[Event]:
        """Nothing is buffered."""
        return ()
