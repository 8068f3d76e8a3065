"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["FLEET_DIR", "RUNS", "ColumnOption", "ConfigDir", "Json", "RunOption"]

RunOption = Annotated[str | None, typer.Option("--run", help="A name under --config-dir, or a path to a TOML file.")]
ConfigDir = Annotated[Path, typer.Option(help="Where the runs' configurations are.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
RUNS = Path("runs")
FLEET_DIR = Path(".sentinel") / "fleet"
"""Beside the default state folders of the runs."""

ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", help="Our name for one of the source's: loss=train/loss; repeat it.")
]
