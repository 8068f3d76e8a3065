"""Options that several commands have, what they print, and how they ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentinel.reports.refusals import what_to_do
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

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


def print_json(document: Any) -> None:
    typer.echo(dump_json(document))


def print_outcomes(outcomes: list[tuple[str, str, str]], *, as_json: bool) -> None:
    """Kind, name and outcome of each thing that was done."""
    if as_json:
        print_json([{"kind": kind, "name": name, "outcome": outcome} for kind, name, outcome in outcomes])
        return
    for kind, name, outcome in outcomes:
        typer.echo(f"{kind} {name}: {outcome}")


def table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[str] = (), caption: str = ""
) -> Table:
    """A table for a terminal; columns are aligned to the right, but those in `left`."""
    from rich.table import Table

    made = Table(title=title, caption=caption or None)
    for head in heads:
        made.add_column(head, justify="left" if head in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def to_stderr(line: str) -> None:
    typer.echo(line, err=True)


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
