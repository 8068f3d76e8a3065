"""`sentinel init`: writes a run's configuration, and prints the line for the trainer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sentinel.adapters.event_files.runs_folder import runs_below
from sentinel.cli.shared import RUNS, ConfigDir, echo
from sentinel.config import template
from sentinel.config.recipes import recipe_files, recipe_keys, recipe_names
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name

_ONLY_HERE = "127.0.0.1"
_KINDS = ("local", "slurm", "elsewhere")
_LAUNCHERS = "local, slurm, elsewhere; ray, gridengine, kubectl: by commands (docs/LAUNCHERS.md)."
_QUESTION = """\
Slurm may start the trainer on any node. On which address should its /metrics listen? With 0.0.0.0 it listens on every
address of the node, and writes the node's to STATE_DIR/scrape.json for Prometheus; 127.0.0.1 can be scraped from the
node itself only. (docs/EXPORTER.md)"""


def init(
    name: Annotated[str, typer.Argument(help="The run's name.")],
    checkpoints: Annotated[str, typer.Option(help="The trainer's save folder, from here.")] = "checkpoints",
    command: Annotated[
        list[str] | None, typer.Option(help="One argument of the trainer's command; may be repeated.")
    ] = None,
    launcher: Annotated[str | None, typer.Option(help=_LAUNCHERS)] = None,
    metrics_address: Annotated[
        str | None, typer.Option(help="Address for the trainer's /metrics; with slurm, init asks for it.")
    ] = None,
    config_dir: ConfigDir = RUNS,
) -> int:
    """Where SENTINEL_STATE_DIR is set, the trainer's hook writes there, and it becomes [run] state_dir."""
    checked_name(name, "NAME")
    known = recipe_names() if launcher not in (None, *_KINDS) else ()
    if launcher not in (None, *_KINDS, *known):
        raise ConfigError(f"--launcher is {', '.join((*_KINDS, *known))}, not {launcher!r}")
    by_recipe, beside = launcher in known, config_dir / f"{name}-launcher"
    path = config_dir / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} exists already; nothing was changed")
    if by_recipe and beside.exists():
        raise ConfigError(f"{beside} exists already; nothing was changed")
    if metrics_address is None and launcher == "slurm":
        metrics_address = _ONLY_HERE
        if sys.stdin.isatty():
            echo(_QUESTION)
            metrics_address = str(typer.prompt("address", default=_ONLY_HERE))
    event_files = runs_below(Path(checkpoints))
    text = template(
        name,
        checkpoints=_from(config_dir, checkpoints),
        tensorboard=_from(config_dir, str(event_files)) if event_files is not None else None,
        state_dir=_from(config_dir, os.environ.get("SENTINEL_STATE_DIR") or f".sentinel/{name}"),
        command=tuple(command or ()),
        launcher=launcher if not by_recipe else None,
        working_directory=_from(config_dir, ".") if command else None,  # where the command was typed
        more=_of_recipe(str(launcher), name, beside.name) if by_recipe else None,
    )
    config_dir.mkdir(parents=True, exist_ok=True)
    if by_recipe:
        beside.mkdir()
        for file, content in (files := recipe_files(str(launcher))).items():
            (beside / file).write_text(content, encoding="utf-8")
        yours = ", ".join(file for file in files if not file.endswith(".py"))
        echo(f"wrote {beside}: put what starts your trainer into {yours}; see docs/LAUNCHERS.md")
    path.write_text(text, encoding="utf-8")
    echo(f"wrote {path}; mode is observe until you change [policy] mode")
    if event_files is not None:
        echo(f"event files found in {event_files}: [run] tensorboard is set to that folder")
    if metrics_address is not None:
        options = f"run={json.dumps(name)}, address={json.dumps(metrics_address)}"
        echo(f"in the trainer: attach(engine, {options}), or StabilityCallback(trainer, {options})")
    return 0


def _of_recipe(launcher: str, name: str, beside: str) -> dict[str, Any]:
    """What the recipe sets, for the run of this name and the folder of the recipe's files beside the configuration."""
    return {**recipe_keys(launcher), "launcher.job_name": name, "launcher.working_directory": beside}


def _from(folder: Path, typed: str) -> str:
    """A path relative to the current folder, as a path relative to the configuration's folder."""
    return typed if Path(typed).is_absolute() else os.path.relpath(typed, folder)
