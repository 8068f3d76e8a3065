"""linked(text) -> the text with links to the pages of docs/ that it names."""

from __future__ import annotations

import re

__all__ = ["linked"]


def linked(text: str) -> str:
    """`docs/PAGING.md#down` as a link from another page of docs/; keys of the configuration as code."""
    text = re.sub(r"(?<!`)(\[\w+\] [a-z_]+)", r"`\1`", text)
    return re.sub(r"docs/(([A-Z_]+)\.md(#[\w-]+)?)", lambda found: f"[{found[2]}]({found[1]})", text)
