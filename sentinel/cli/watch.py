"""`sentinel watch`: follows runs, and recovers them in mode act."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentinel.cli.shared import FLEET_DIR, RUNS, ConfigDir, Observe
from sentinel.vocabulary.errors import ConfigError


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
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="With --all: at most so many worker processes; by default one per core."),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="With --all: watch at most so many runs; other daemons on the folder take the rest."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level DEBUG.")] = False,
) -> int:
    """With several runs the exit code is the largest of theirs."""
    from sentinel.config.run_files import Chosen
    from sentinel.daemon import supervisor
    from sentinel.daemon.logs import log_to_stderr

    log_to_stderr(verbose=verbose)
    if not everything and (workers is not None or most is not None):
        raise ConfigError("--workers and --most: pass them with --all")
    chosen = Chosen(runs=tuple(run or ()), everything=everything, config_dir=config_dir)
    options = supervisor.Options(observe=observe, once=once, verbose=verbose, workers=workers, most=most)
    return supervisor.watch(chosen, options, fleet_dir=fleet_dir)
