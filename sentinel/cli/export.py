"""`sentinel export`: the samples of any source as a table in sentinel's names."""

from __future__ import annotations

from itertools import chain, repeat
from pathlib import Path
from typing import Annotated

import typer

from sentinel.adapters.export import SUFFIXES, write_table
from sentinel.adapters.export import Columns as TableColumns
from sentinel.cli.shared import RUNS, Columns, ConfigDir, Run, echo, parsed_columns
from sentinel.config.run_files import find_config
from sentinel.daemon.sources import source_named, source_of_run
from sentinel.judge.readings import CARRIED, COLUMNS, ends_of_descent
from sentinel.vocabulary.errors import ConfigError


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The table: .csv, .parquet or .jsonl.")],
    path: Annotated[
        str | None, typer.Argument(help="Readings as `replay` takes them; default: the run of --run.")
    ] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    column: Columns = None,
    descent: Annotated[
        bool, typer.Option("--descent", help="Leave out the steps that a restart discarded: each step once.")
    ] = False,
) -> int:
    """nan is nan; what was not measured is null, in CSV an empty cell. `sentinel replay` reads the table again."""
    if path is not None and run is not None:
        raise ConfigError("pass either a path or --run, not both")
    columns = parsed_columns(column)
    source = source_of_run(find_config(run, config_dir)) if path is None else source_named(path, columns, config_dir)
    if output.suffix not in SUFFIXES:
        raise ConfigError(f"{output.name!r}: a table is a {', '.join(SUFFIXES)} file")
    source.fields = (*COLUMNS, *CARRIED)
    table, first_steps = TableColumns(), []
    for readings in filter(len, source):  # twice, in constant memory: its columns and steps, then its samples
        table.note(readings)
        first_steps.append(int(readings.steps[0]))
    if not first_steps:
        raise ConfigError(f"nothing to export: {source.path} has {source.count}")
    output.parent.mkdir(parents=True, exist_ok=True)
    ends = chain(ends_of_descent(first_steps) if descent else [], repeat(None))
    kept = (r if end is None else r.until(end) for r, end in zip(filter(len, source), ends, strict=False))
    written = write_table(output, table.schema, kept)
    echo(f"wrote {written} samples of {source.path} ({source.format}) to {output}")
    if source.unreadable:
        echo(f"{source.unreadable} lines can't be read; `sentinel replay` shows the first of them", err=True)
    return 0
