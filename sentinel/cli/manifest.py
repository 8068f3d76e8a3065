"""`sentinel manifest`: writes the digests of a checkpoint into STATE_DIR/manifests."""

from __future__ import annotations

from typing import Annotated

import typer

from sentinel.adapters.checkpoints import write_manifest
from sentinel.cli.shared import RUNS, ConfigDir, Run, echo, reading_bar
from sentinel.config.run_files import find_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.vocabulary.errors import ConfigError


def manifest(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; default: the last complete one.")] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    near = neighbours_of(find_config(run, config_dir))
    complete = [c.tag for c in near.checkpoints.list() if c.complete]
    chosen = tag or (complete[-1] if complete else None)
    if chosen is None:
        raise ConfigError(f"{near.checkpoints.folder} has no complete checkpoint")
    near.state_dir.mkdir(parents=True, exist_ok=True)
    with reading_bar(chosen) as progress:
        path = write_manifest(near.checkpoints.folder, chosen, near.state_dir, progress=progress)
    echo(f"wrote {path}")
    return 0
