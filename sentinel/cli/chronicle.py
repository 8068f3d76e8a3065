"""`sentinel chronicle`: the run's history as a page with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli.shared import RUNS, ConfigDir, Run, echo
from sentinel.config.run_files import bisect_folder, find_config, incident_log_of
from sentinel.daemon.sources import source_of_run
from sentinel.reports.bisect import reports_in
from sentinel.reports.chronicle import write_chronicle
from sentinel.reports.past import read_past

_FOLDER = Path("chronicle")


def chronicle(
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and its pictures.")] = _FOLDER,
) -> int:
    """The page says what diverged, what was tried, what it cost, and what helped."""
    config = find_config(run, config_dir)
    bisects = reports_in(bisect_folder(config))
    past = read_past(source_of_run(config), incident_log_of(config).read())
    page = write_chronicle(config.run.name, past, output, bisects)
    echo(f"wrote {page}")
    return 0
