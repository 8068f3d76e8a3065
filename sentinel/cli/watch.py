"""`sentinel watch`: follows runs, and recovers them in mode act."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli.shared import FLEET_DIR, RUNS, ConfigDir, Observe


def watch(
    run: Annotated[
        list[str] | None,
        typer.Option("--run", help="A name under --config-dir, or a path to a TOML file; may be repeated."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every run that is configured under --config-dir.")] = False,
    config_dir: ConfigDir = RUNS,
    observe: Observe = False,
    once: Annotated[bool, typer.Option("--once", help="Look once, then exit with the answer.")] = False,
    fleet_dir: Annotated[
        Path,
        typer.Option(help="With several runs: folder of the files that Prometheus and a liveness probe read."),
    ] = FLEET_DIR,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level DEBUG.")] = False,
) -> int:
    """With several runs the exit code is the largest of theirs."""
    from sentinel.daemon import supervisor
    from sentinel.daemon.run_files import Chosen

    supervisor.log_to_stderr(verbose=verbose)
    chosen = Chosen(runs=tuple(run or ()), everything=everything, config_dir=config_dir)
    return supervisor.watch(chosen, observe=observe, once=once, fleet_dir=fleet_dir)
