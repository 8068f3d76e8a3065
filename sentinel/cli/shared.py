"""Options that several commands have, what they print, and how they ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.reports.refusals import what_to_do
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.texts import neutral

if TYPE_CHECKING:
    from rich.table import Table

RUNS = Path("runs")
FLEET_DIR = Path(".sentinel") / "fleet"  # beside the default state folders of the runs
_PICTURES = (".png", ".svg")

Run = Annotated[str | None, typer.Option("--run", help="A name under --config-dir, or a path to a TOML file.")]
ConfigDir = Annotated[Path, typer.Option(help="Folder of the runs' configurations.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Observe = Annotated[bool, typer.Option("--observe", help="Watch without acting, whatever \\[policy] mode is.")]
IncidentName = Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")]
Texts = Annotated[
    Path | None, typer.Option(help='Texts of the samples: JSON lines of {"position", "text"}; see docs/TRIAGE.md.')
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="sentinel's name for a column of the source: loss=train/loss; may be repeated."),
]


Loss = Annotated[str | None, typer.Option("--loss", help="The column, key or words of the loss: --column loss=NAME.")]


def parsed_columns(texts: Sequence[str] | None, loss: str | None = None) -> dict[str, str]:
    """`loss=train/loss` as a mapping, with the name of --loss. ConfigError for any other form."""
    columns = {"loss": loss} if loss is not None else {}
    for text in texts or ():
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError(f"--column {text!r}: write --column loss=train/loss, sentinel's name first")
        columns[ours.strip()] = theirs.strip()
    return columns


def fields_of(thing: object, *names: str) -> dict[str, Any]:
    """A part of a JSON document: these attributes, by their names."""
    return {name: getattr(thing, name) for name in names}


def echo(text: str, *, err: bool = False) -> None:
    """Prints for a person, on stdout or stderr; the only way to print: texts of others do not steer the terminal."""
    typer.echo(neutral(text), err=err)


def print_json(document: Any) -> None:
    echo(dump_json(document))


def print_outcomes(outcomes: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """Kind, name and outcome of each thing that was done."""
    if as_json:
        print_json([{"kind": kind, "name": name, "outcome": outcome} for kind, name, outcome in outcomes])
        return
    for kind, name, outcome in outcomes:
        echo(f"{kind} {name}: {outcome}")


def table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = (), caption: str = ""
) -> Table:
    """A table for a terminal; columns are aligned to the right, but those in `left`."""
    from rich.markup import escape
    from rich.table import Table

    made = Table(title=escape(neutral(title)), caption=escape(neutral(caption)) or None)
    for head in heads:
        made.add_column(escape(head), justify="left" if head in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*(escape(neutral(cell)) for cell in row))  # no cell is markup
    return made


def to_stderr(line: str) -> None:
    echo(line, err=True)


def advise(refusal: str | None) -> None:
    """Prints what the runbook says of a refusal on stderr, where it says anything."""
    if refusal is not None and (advice := what_to_do(refusal)) is not None:
        to_stderr(f"what to do: {advice}")


def local_time(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(unix_s).astimezone():%Y-%m-%d %H:%M:%S}"


def this_person() -> str:
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.gethostname()}"


def confirmed(question: str, *, typed: str | None = None) -> bool:
    """Whether the person at the terminal says yes, or types the word; False where stdin is not a terminal."""
    if not sys.stdin.isatty():
        to_stderr("stdin is not a terminal; pass --yes to confirm")
        return False
    if typed is None:
        return typer.confirm(neutral(question))
    return str(typer.prompt(neutral(question), default="", show_default=False)).strip() == typed


def check_picture(path: Path | None) -> None:
    """ConfigError where the path is neither .png nor .svg."""
    if path is not None and path.suffix not in _PICTURES:
        raise ConfigError(f"{path.name!r}: a picture is a {' or '.join(_PICTURES)} file")


@contextmanager
def reading_bar(tag: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr while a checkpoint is read; yields a function of bytes done and bytes in all."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(neutral(f"reading {tag}")), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


_FIRST_S, _TTY_S, _LINE_S = 1.0, 0.2, 10.0  # before the first line of progress, and between two


@contextmanager
def looking_line() -> Iterator[Callable[[float], None]]:
    """A line on stderr while the checkpoints are looked at, where that takes long; yields a function of the share that
    is done. On a terminal one line that is written over, else a line every ten seconds."""
    terminal, began_s = sys.stderr.isatty(), monotonic()
    next_s, shown = began_s + _FIRST_S, False

    def progress(share: float) -> None:
        nonlocal next_s, shown
        if monotonic() < next_s or share >= 1.0:
            return
        next_s, shown = monotonic() + (_TTY_S if terminal else _LINE_S), True
        line = f"looking at the checkpoints: {share:.0%}"
        sys.stderr.write(f"\r{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    try:
        yield progress
    finally:
        if shown and terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
