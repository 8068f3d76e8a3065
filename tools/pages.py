"""Writes the pages of docs/ that are made from the code: `python -m tools.pages`, or `make pages`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools import (
    alerts_page,
    commands_page,
    configuration_page,
    criteria_page,
    lint_page,
    log_formats_page,
    metrics_page,
    paging_page,
    python_page,
    runbook_page,
    rungs_page,
)

__all__ = ["DOCS", "PAGES"]

DOCS = Path(__file__).parents[1] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "ALERTS.md": alerts_page.page,
    "COMMANDS.md": commands_page.page,
    "CONFIGURATION.md": configuration_page.page,
    "CRITERIA.md": criteria_page.page,
    "LINT_RULES.md": lint_page.page,
    "LOG_FORMATS.md": log_formats_page.page,
    "METRICS.md": metrics_page.page,
    "PAGING.md": paging_page.page,
    "PYTHON.md": python_page.page,
    "RUNBOOK.md": runbook_page.page,
    "RUNGS.md": rungs_page.page,
}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
