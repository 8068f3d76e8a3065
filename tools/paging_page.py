"""Writes docs/PAGING.md: what a page of each topic means and what to do, from the table that pages are written with."""

from __future__ import annotations

from sentinel.plan.alerts.page import WHAT_TO_DO
from tools.links import linked

__all__ = ["page"]

HEAD = """# What does a page mean?

A section for each topic: severity, when the page is sent, what to do. A page ends with its condition.
[Who is paged, and how](CHANNELS.md).

This page is made from the code by `tools/paging_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join((HEAD, *(f"## {topic}\n\n{linked(text)}\n" for topic, text in WHAT_TO_DO.items())))
