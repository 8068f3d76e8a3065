"""load_config(path) -> the Config of a TOML file, with absolute paths and tables that are consistent."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from sentinel import bounded
from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.paging.settings import Channel, Paging
from sentinel.adapters.wandb.settings import WandbRun
from sentinel.config.build import build
from sentinel.config.tables import Config, Run, Source
from sentinel.vocabulary.errors import ConfigError

__all__ = ["load_config"]

_LARGEST_BYTES = 1 << 20
"""Of a configuration; one with every key and its comment has thirty thousand."""

C = TypeVar("C", bound=Channel)


def load_config(path: Path) -> Config:
    """The configuration in a file. ConfigError names the file, the key, and what would be right."""
    try:
        data = tomllib.loads(bounded.read_text(path, _LARGEST_BYTES))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `sentinel init` writes a commented one") from error
    except (OSError, ValueError, RecursionError) as error:  # of a number with too many digits Python makes none
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _resolved(build(Config, data), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolved(config: Config, folder: Path) -> Config:
    run, launcher = config.run, config.launcher
    if config.source.format is not None:
        from sentinel.sources.recognise import decoder_named  # takes 0.2 s to import, and few runs name a format

        decoder_named(config.source.format)
    state_dir = folder / run.state_dir if run.state_dir else Path.cwd() / ".sentinel" / run.name
    if launcher.kind == "elsewhere" and config.policy.mode != "observe":
        raise ConfigError(
            f"[policy] mode should be 'observe', not {config.policy.mode!r}: with [launcher] kind = 'elsewhere' "
            "nothing can be stopped or started"
        )
    if config.source.kind == "prometheus" and config.policy.mode != "observe":
        raise ConfigError(
            f"[policy] mode should be 'observe', not {config.policy.mode!r}: with [source] kind = 'prometheus' nothing "
            "can be proved, for the trainer's own report of a start is in its journal"
        )
    if launcher.command and not launcher.command[0]:
        raise ConfigError("[launcher] command: its first element should name a program")
    if odd := next((a for a in launcher.sbatch_arguments if not a.startswith("--")), None):
        raise ConfigError(f"[launcher] sbatch_arguments: {odd!r} should be in the long form, as '--partition=long'")
    return Config(
        run=Run(
            name=run.name,
            checkpoints=folder / run.checkpoints,
            state_dir=state_dir,
            tensorboard=folder / run.tensorboard if run.tensorboard else None,
            reference=tuple((folder / path).resolve() for path in run.reference),
            planned_steps=run.planned_steps,
        ),
        launcher=replace(
            launcher,
            working_directory=folder / launcher.working_directory,
            log=folder / launcher.log if launcher.log else state_dir / "job.log",
            script=folder / launcher.script if launcher.script else None,
        ),
        source=replace(config.source, **_absolute(config.source, folder)),
        watch=config.watch,
        judge=config.judge,
        policy=config.policy,
        tune=config.tune,
        paging=_paging_resolved(config.paging, folder),
        metrics=replace(config.metrics, **_absolute(config.metrics, folder)),
        wandb=replace(config.wandb, **_absolute(config.wandb, folder)),
    )


def _paging_resolved(paging: Paging, folder: Path) -> Paging:
    def resolved(channels: tuple[C, ...]) -> tuple[C, ...]:
        return tuple(replace(channel, **_absolute(channel, folder)) for channel in channels)

    return replace(
        paging,
        webhook=resolved(paging.webhook),
        mail=resolved(paging.mail),
        command=resolved(paging.command),
        alertmanager=resolved(paging.alertmanager),
    )


def _absolute(table: Channel | Source | Metrics | WandbRun, folder: Path) -> dict[str, Any]:
    paths = {f.name: getattr(table, f.name) for f in fields(table)}
    return {name: folder / path for name, path in paths.items() if isinstance(path, Path)}
