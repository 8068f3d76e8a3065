"""`sentinel pin`: keeps a checkpoint by hard links."""

from __future__ import annotations

from typing import Annotated

import typer

from sentinel.cli.shared import RUNS, ConfigDir, Run, echo
from sentinel.config.run_files import find_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.vocabulary.errors import ConfigError


def pin(
    tag: Annotated[str | None, typer.Argument(help="The checkpoint; default: list what is pinned.")] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    release: Annotated[bool, typer.Option("--release", help="Remove the pin.")] = False,
) -> int:
    checkpoints = neighbours_of(find_config(run, config_dir)).checkpoints
    pins = checkpoints.pins
    if tag is None:
        echo("\n".join((*pins.usable(), *pins.notes())) or "nothing is pinned")
        return 0
    if not release:
        if torn := [c for c in checkpoints.list() if c.tag == tag and not c.complete]:
            raise ConfigError(f"{tag} is not complete and is not worth a pin: {torn[0].problem}")
        pins.pin(tag)
        echo(f"{tag} is pinned: retention can't delete it; the pin takes no space while the checkpoint exists")
        return 0
    if tag not in pins.tags():
        raise ConfigError(f"{tag} is not pinned; pinned are {', '.join(pins.tags()) or 'none'}")
    if pins.let_go(tag):
        echo(f"{tag} is not pinned any more; the checkpoint's own files are complete")
    else:
        echo(f"{tag} existed only as a pin: it was moved to {pins.unpin(tag)}; delete it there if not needed")
    return 0
