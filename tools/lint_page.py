"""Writes docs/LINT_RULES.md: what each rule of `sentinel lint` looks at, from the rules' docstrings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sentinel.lint import RESTART_RULES, RULES
from sentinel.lint.finding import source_of

__all__ = ["page"]

Rule = Callable[..., Any]

HEAD = """# Lint rules

Every rule of `sentinel lint`, in the order in which they run. [Lint](LINT.md) says how to use it.

This page is made from the code by `tools/lint_page.py` (`make pages`).

## Rules for a run
"""
RESTART = """
## Rules for a restart

Looked at before a rollback restarts the run, beside what the changes add to the findings above.
"""
TABLE = """
| rule | what it looks at, and when it reports | source |
|---|---|---|
"""


def page() -> str:
    """The page, as Markdown."""
    return HEAD + TABLE + _rows(RULES) + RESTART + TABLE + _rows(RESTART_RULES)


def _rows(rules: Iterable[Rule]) -> str:
    return "".join(f"| `{rule.__name__}` | {_looks_at(rule)} | {source_of(rule)} |\n" for rule in rules)


def _looks_at(rule: Rule) -> str:
    return " ".join((rule.__doc__ or "").partition("Source:")[0].split()).replace("|", "\\|")
