"""How a campaign is called, and how it tells what it found."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence

NOT_HERE = 77
"""Exit code where the machine does not allow the campaign."""

Row = Sequence[object]


class NotHereError(Exception):
    """This machine does not allow it: why."""


def campaign(doc: str | None, head: Row, rows: Callable[[bool], tuple[list[Row], list[str]]]) -> None:
    """Runs it and prints its table. `rows` gives the table's rows and what was wrong, as sentences."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="less than a minute or two")
    short = parser.parse_args().short
    try:
        table, wrong = rows(short)
    except NotHereError as error:
        print(f"not run: {error}")
        sys.exit(NOT_HERE)
    texts = [[str(cell) for cell in row] for row in (head, *table)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(head))]
    print(f"{(doc or '').splitlines()[0]}\n{os.cpu_count()} cores, {platform.machine()}{', --short' if short else ''}")
    for row in texts:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    sys.exit(1 if wrong else 0)
