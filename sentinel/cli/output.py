"""What several commands print, and how they ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["check_picture", "confirmed", "local_time", "print_json", "print_outcomes", "reading_bar", "to_stderr"]

_PICTURES = (".png", ".svg")


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(dump_json(document))


def print_outcomes(outcomes: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """Kind, name and outcome of each thing that was done."""
    if as_json:
        print_json([{"kind": kind, "name": name, "outcome": outcome} for kind, name, outcome in outcomes])
        return
    for kind, name, outcome in outcomes:
        typer.echo(f"{kind} {name}: {outcome}")


def to_stderr(line: str) -> None:
    """One line on stderr."""
    typer.echo(line, err=True)


def local_time(unix_s: float) -> str:
    """Date and time in the local time zone."""
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M:%S}"


def confirmed(question: str, *, typed: str | None = None) -> bool:
    """Whether the person at the terminal says yes, or types the word; False where stdin is not a terminal."""
    if not sys.stdin.isatty():
        to_stderr("stdin is not a terminal; pass --yes to confirm")
        return False
    if typed is None:
        return typer.confirm(question)
    return str(typer.prompt(question, default="", show_default=False)).strip() == typed


def check_picture(path: Path | None) -> None:
    """ConfigError where the path is neither .png nor .svg."""
    if path is not None and path.suffix not in _PICTURES:
        raise ConfigError(f"{path.name!r}: a picture is a {' or '.join(_PICTURES)} file")


@contextmanager
def reading_bar(tag: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr while a checkpoint is read; yields a function of bytes done and bytes in all."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"reading {tag}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
