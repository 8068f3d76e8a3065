"""A command of `sentinel`, called as a shell calls it, and what it answered."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from sentinel.cli import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Sentinel:
    """Of one test, with the words that each of its calls begins with."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    words: tuple[str, ...] = ()

    def __call__(self, *words: object) -> Answer:
        self.monkeypatch.setattr(sys, "argv", ["sentinel", *self.words, *map(str, words)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        shown, code = self.capsys.readouterr(), left.value.code
        return Answer(code if isinstance(code, int) else 0, shown.out, shown.err)
