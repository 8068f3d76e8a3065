"""`sentinel chronicle`: the run's history as a page with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.cli.options import RUNS, ConfigDir, Run
from sentinel.daemon.run_files import find_config, incident_log_of, state_dir_of

__all__ = ["chronicle"]


def chronicle(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and its pictures.")] = Path(
        "chronicle"
    ),
) -> int:
    """The page says what diverged, what was tried, what it cost, and what helped."""
    from sentinel.act.source import read_all
    from sentinel.daemon.sources import source_of
    from sentinel.judge.history import History
    from sentinel.reports.chronicle.page import write_chronicle

    config = find_config(run, config_dir)
    history = History()
    for record in read_all(source_of(config, state_dir_of(config))):
        history.push(record)
    events: list[dict[str, Any]] = [dict(event) for event in incident_log_of(config).read()]
    typer.echo(f"wrote {write_chronicle(config.run.name, history, events, output)}")
    return 0
