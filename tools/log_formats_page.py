"""Writes docs/LOG_FORMATS.md: the formats of log lines, with a line of each, from the table of formats."""

from __future__ import annotations

from sentinel.sources.line_formats import FORMATS

__all__ = ["page"]

HEAD = """# Log formats

The formats of other trainers' logs that sentinel reads, in the order in which they are tried.
[Sources](SOURCES.md) says how the format is found and what is refused.

This page is made from `sentinel/sources/line_formats.py` by `tools/log_formats_page.py` (`make pages`).

| format | step 7 with a loss of 2.5 | what a reader would not expect |
|---|---|---|
"""


def page() -> str:
    """The page, as Markdown."""
    rows = (f"| `{f.name}` | `{_cell(f.sample)}` | {f.traps} |\n" for f in FORMATS)
    return HEAD + "".join(rows)


def _cell(sample: str) -> str:
    return " ".join(sample.split()).replace("|", "\\|")
