"""Records of what the code says of chosen cases, in tests/data.

A record holds few of the cases that can be drawn: those that reach a branch, or notice a small breakage of the code
(`python -m tools.mutants`), which no other one does. Each line is one decision, so that a change reads as one line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["Record"]

_DATA = Path(__file__).parent / "data"
_BEGIN = "== "
_SAYS = " => "


class Record:
    """The record in the file of that name in tests/data; `said` gives what is recorded of a case, by its name.

    Of a case there is a block of lines below `== NAME`; or, with `one_line`, one line `NAME => WHAT`.
    """

    def __init__(self, file: str, said: Callable[[str], str], *, one_line: bool = False) -> None:
        self._path = _DATA / file
        self._said = said
        self._one_line = one_line

    def read(self) -> dict[str, str]:
        """Name of a case -> what is recorded of it."""
        text = self._path.read_text(encoding="utf-8")
        if self._one_line:
            return {name: says for name, _, says in (line.partition(_SAYS) for line in text.splitlines())}
        parts = (part.partition("\n") for part in text.split(_BEGIN)[1:])
        return {name: block.rstrip("\n") for name, _, block in parts}

    def differences(self, names: Iterable[str]) -> list[str]:
        """Of those cases: each line that was recorded and is not said now, and the other way round."""
        recorded, found = self.read(), []
        for name in names:
            before, now = recorded[name].split("\n"), self._said(name).split("\n")
            if now != before:
                found += [f"{name}: - {line}" for line in before if line not in now]
                found += [f"{name}: + {line}" for line in now if line not in before]
                found += [f"{name}: the same lines, other order or number"] * (set(now) == set(before))
        return found

    def write(self) -> None:
        """Records the same cases anew, and those that the command names."""
        names = dict.fromkeys([*self.read(), *sys.argv[1:]])
        form = f"{{}}{_SAYS}{{}}\n" if self._one_line else f"{_BEGIN}{{}}\n{{}}\n"
        self._path.write_text("".join(form.format(name, self._said(name)) for name in names), encoding="utf-8")
