"""Writes docs/RUNBOOK.md: every sentence that sentinel refuses with, and what to do, from the table of refusals."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.reports.refusals import Section, sections

__all__ = ["page"]

HEAD = """# Runbook

Each heading is a sentence that sentinel prints when it refuses or stops; `…` varies. The text says the cause and what
to do. `sentinel incidents` lists what was done. Nothing was deleted; `sentinel undo` brings back what a rollback moved.

| exit code | meaning |
|---|---|
| 0 | done; the run reached its planned end and is healthy |
| 1 | the answer is no: diverged, stalled, down, not recovered, refused |
| 2 | wrong usage or configuration; the sentence names the file and the key |
| 3 | another system (Slurm, Grafana, a file server) could not be reached, or something still writes: try again |
| 4 | a person is needed; `sentinel watch` has stopped acting on this run |

After exit code 4, `sentinel watch` exits with 4 again until `sentinel rollback` replaces the incident or
`sentinel undo` takes it back. After a refusal by the filesystem, watch goes on by itself as soon as the filesystem
allows it.

This page is made from `sentinel/reports/refusals.toml` by `tools/runbook_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    return "\n".join((HEAD, *(f"{text}\n" for section in sections() for text in _section(section))))


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    if section.text:
        yield section.text.strip()
    for refusal in section.refusal:
        yield "\n\n".join(f"### {says}" for says in refusal.says)
        yield refusal.do.strip()
