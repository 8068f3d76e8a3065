"""`sentinel init`: a run's configuration, and what its trainer is to be told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import overload

import typer

from sentinel.config import template
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name

__all__ = ["init"]

_ONLY_HERE = "127.0.0.1"
_QUESTION = """\
Slurm puts the trainer on any node. Where should its /metrics listen? 0.0.0.0 is every address of the node, and tells
Prometheus which by STATE_DIR/scrape.json; 127.0.0.1 is reached from the node itself alone. (docs/EXPORTER.md)"""


def init(
    name: str,
    config_dir: Path,
    *,
    checkpoints: str,
    command: tuple[str, ...],
    launcher: str | None,
    metrics_address: str | None,
) -> int:
    """Writes the configuration; asks for the address with Slurm, where there is somebody to ask.

    `checkpoints` counts from the current folder, as any path on a command line. Where SENTINEL_STATE_DIR is set the
    trainer's hook writes there, so it becomes the run's state folder.
    """
    checked_name(name, "NAME, the run's name,")
    if launcher not in (None, "local", "slurm", "elsewhere"):
        raise ConfigError(f"--launcher is local, slurm or elsewhere, not {launcher!r}")
    path = config_dir / f"{name}.toml"
    if path.exists():
        raise ConfigError(f"{path} is there already; nothing was changed")
    if metrics_address is None and launcher == "slurm":
        metrics_address = _ask() if sys.stdin.isatty() else _ONLY_HERE
    text = template(
        name,
        checkpoints=_from(config_dir, checkpoints),
        state_dir=_from(config_dir, os.environ.get("SENTINEL_STATE_DIR") or str(Path(".sentinel", name))),
        command=command,
        launcher=launcher,
    )
    config_dir.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {path}; mode is observe until you change [policy] mode")
    if metrics_address is not None:
        typer.echo(f"in the trainer: attach(engine, run={json.dumps(name)}, address={json.dumps(metrics_address)})")
    return 0


@overload
def _from(folder: Path, typed: str) -> str: ...
@overload
def _from(folder: Path, typed: str | None) -> str | None: ...
def _from(folder: Path, typed: str | None) -> str | None:
    """A path that counts from where it was typed, as the configuration in the folder has it."""
    if typed is None or Path(typed).is_absolute():
        return typed
    return os.path.relpath(typed, folder)


def _ask() -> str:
    typer.echo(_QUESTION)
    return str(typer.prompt("address", default=_ONLY_HERE))
