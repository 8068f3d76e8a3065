"""Which words of a log's lines became the step, the loss, the learning rate and the gradient norm.

They are found by the numbers, whatever format has read them: a word is named where its number is the field's in more of
the first lines than any other word's.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Sequence

from sentinel.sources.line_events import Event, LineReading
from sentinel.sources.line_text import number

EXPLAINED = ("step", "loss", "lr", "grad_norm")
_MOST = 200  # readings that are looked at
_LONGEST = 4_000  # characters of a line
_LINES = 60  # of a block
_DIGITS = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[KMBG]?")
_WORDS = re.compile(
    r"((?:[A-Za-z_][\w./-]*[ ]){0,3}[A-Za-z_][\w./-]*(?: ?\([^()]{1,20}\))?)['\"]?\s*[:=|#]?\s*(?:is )?[\[({'\"]*\s*$"
)
_LEVELS = re.compile(r"^(?:INFO|DEBUG|WARNING|train|Train) (?=\w)")


class TakenNames:
    """Counts for each field the words before its number."""

    def __init__(self) -> None:
        self._words: dict[str, Counter[str]] = {name: Counter() for name in EXPLAINED}
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._readings = 0

    @property
    def looks(self) -> bool:
        """Whether more lines are looked at."""
        return self._readings < _MOST

    def push(self, line: str, events: Sequence[Event]) -> None:
        """Takes a line and what it was read as."""
        if not self.looks:
            return
        self._lines.append(line[:_LONGEST])
        for event in events:
            if isinstance(event, LineReading):
                self._readings += 1
                self._count(event)
        if any(isinstance(event, LineReading) for event in events):
            while len(self._lines) > 1:  # a progress bar and a block are read when the next one has begun
                self._lines.popleft()

    @property
    def names(self) -> dict[str, str]:
        """Field to words; `(counted)` for a field whose number stands on no line."""
        found = {name: words.most_common(1)[0][0] for name, words in self._words.items() if words}
        return found | {name: "(counted)" for name, words in found.items() if not words}

    def _count(self, reading: LineReading) -> None:
        digits = ((m, line) for line in self._lines for m in _DIGITS.finditer(line))
        numbers = [(found, m, line) for m, line in digits if (found := number(m[0].replace(",", ""))) is not None]
        values = {"loss": reading.loss, "lr": reading.fields.get("lr"), "grad_norm": reading.fields.get("grad_norm")}
        for name, value in {"step": float(reading.step), **values}.items():
            if value is None or not math.isfinite(value):
                continue
            wanted = {"step": (value, value - 1), "loss": (value, value / math.log(2))}.get(name, (value,))
            words: list[str] = []
            for want in wanted:
                words = [_before(m, line) for found, m, line in numbers if math.isclose(found, want)]
                if words:
                    break
            self._words[name].update(dict.fromkeys(words or [""], 1))  # of two words as frequent the first one met


def _before(found: re.Match[str], line: str) -> str:
    """The words before a number; the form of what follows it, where there are none."""
    words = _WORDS.search(line, max(0, found.start() - 60), found.start())
    if words is not None:
        return _LEVELS.sub("", words[1])
    return "N" + re.sub(r"\d+", "N", line[found.end() : found.end() + 15]).rstrip()
