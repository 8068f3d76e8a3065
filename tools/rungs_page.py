"""Writes docs/RUNGS.md: for each key of a rung its hypothesis and known failures, from the table of rungs."""

from __future__ import annotations

from sentinel.reports.rungs import evidence

__all__ = ["page"]

HEAD = """# What a rung tests

For each key of a [rung](LADDER.md): the hypothesis, with its source, and when it is known to be wrong, which a
dry run of `sentinel rollback --rung` prints, too. [What each key does](CONFIGURATION.md#policyladder).

This page is made from `sentinel/reports/rungs.toml` by `tools/rungs_page.py` (`make pages`).

| key | hypothesis and source | wrong when |
|---|---|---|
"""


def page() -> str:
    """The page, as Markdown."""
    return HEAD + "".join(f"| {_keys(row.keys)} | {row.hypothesis} | {row.wrong} |\n" for row in evidence())


def _keys(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`[[policy.ladder]] {key}`" for key in keys)
