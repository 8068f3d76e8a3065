"""Options and arguments that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sentinel.vocabulary.errors import ConfigError

__all__ = [
    "FLEET_DIR",
    "RUNS",
    "Columns",
    "ConfigDir",
    "IncidentName",
    "Json",
    "Observe",
    "Run",
    "Texts",
    "Yes",
    "parsed_columns",
]

RUNS = Path("runs")
FLEET_DIR = Path(".sentinel") / "fleet"
"""Beside the default state folders of the runs."""

Run = Annotated[str | None, typer.Option("--run", help="A name under --config-dir, or a path to a TOML file.")]
ConfigDir = Annotated[Path, typer.Option(help="Folder of the runs' configurations.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Observe = Annotated[bool, typer.Option("--observe", help="Watch without acting, whatever [policy] mode is.")]
IncidentName = Annotated[str, typer.Argument(help="The incident, e.g. incident-1.")]
Texts = Annotated[
    Path | None, typer.Option(help='Texts of the samples: JSON lines of {"position", "text"}; see docs/TRIAGE.md.')
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="sentinel's name for a column of the source: loss=train/loss; may be repeated."),
]


def parsed_columns(texts: Sequence[str] | None) -> dict[str, str]:
    """`loss=train/loss` as a mapping. ConfigError for any other form."""
    columns = {}
    for text in texts or ():
        ours, equals, theirs = text.partition("=")
        if not (ours and equals and theirs):
            raise ConfigError(f"--column {text!r}: write --column loss=train/loss, sentinel's name first")
        columns[ours.strip()] = theirs.strip()
    return columns
