"""known_failures(rung) -> when each change of a rung is known to be wrong; `rungs.toml` beside this is the table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from sentinel.plan.choose.ladder import Rung
from sentinel.reports.refusals import without_links
from sentinel.vocabulary.codec import read

_TABLE = Path(__file__).with_name("rungs.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One row of the table, for keys that belong together."""

    keys: tuple[str, ...]
    hypothesis: str  # what is true if such a rung helps, with its source, as Markdown with links relative to docs/
    wrong: str  # when it does not help, as others or our benchmarks saw it; "" where nothing is known


@cache
def evidence() -> tuple[Evidence, ...]:
    return tuple(read(Evidence, row) for row in tomllib.loads(_TABLE.read_text(encoding="utf-8"))["rung"])


def known_failures(rung: Rung) -> Iterator[str]:
    changed = {f.name for f in fields(rung) if getattr(rung, f.name) != f.default}
    for row in evidence():
        if row.wrong and (keys := [key for key in row.keys if key in changed]):
            yield f"known failures of {', '.join(keys)}: {without_links(row.wrong)}"
