"""what_to_do(sentence) -> what the runbook says of a refusal; `refusals.toml` beside this file is the table of all."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sentinel.vocabulary.codec import read

_TABLE = Path(__file__).with_name("refusals.toml")
_VARIES = "…"  # in a sentence of the table: a name, a number, another system's words
_LITERAL = 15  # characters that a sentence has to share with a row: "… can't be read: …" has 16, "process … on …" 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    says: tuple[str, ...]  # the sentences of the code, with `…` for what varies
    do: str  # its cause and what to do, as Markdown with links relative to docs/


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    text: str = ""
    refusal: tuple[Refusal, ...] = ()


@cache
def sections() -> tuple[Section, ...]:
    return tuple(read(Section, part) for part in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["section"])


def what_to_do(sentence: str) -> str | None:
    """The first paragraph of what the runbook says of the sentence, on one line; None where no row is about it. Of
    several rows, the one that shares most with the sentence."""
    rows = [(says, row) for part in sections() for row in part.refusal for says in row.says]
    fit = [(_literal(says), row) for says, row in rows if _literal(says) >= _LITERAL and _pattern(says).match(sentence)]
    if not fit:
        return None
    _, row = max(fit, key=lambda found: found[0])
    paragraph = " ".join(row.do.strip().split("\n\n")[0].split())
    return without_links(paragraph)


def without_links(text: str) -> str:
    """Markdown with links from docs/ as it is printed on a terminal."""
    return re.sub(r"\[([^\]]+)\]\(([A-Z_]+\.md[^)]*)\)", r"\1 (docs/\2)", text)


def _literal(says: str) -> int:
    return len(says.replace(_VARIES, ""))


def _pattern(says: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in says.split(_VARIES)) + r"\Z", re.DOTALL)
