"""load_config(path) -> the Config of a TOML file, with absolute paths and tables that are consistent."""

from __future__ import annotations

import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from sentinel import bounded
from sentinel.config.tables import Config
from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_path_text

_LARGEST_BYTES = 1 << 20
"""Of a configuration; one with every key and its comment has thirty thousand."""

_TOML = Form(
    error=ConfigError,
    name="the file",
    json=False,
    scalars={Path: ("a path", lambda text, key: Path(checked_path_text(text, key)))},
)

T = TypeVar("T")


def load_config(path: Path) -> Config:
    """The configuration in a file. ConfigError names the file, the key, and what would be right."""
    try:
        data = tomllib.loads(bounded.read_text(path, _LARGEST_BYTES))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; `sentinel init` writes a commented one") from error
    except (OSError, ValueError, RecursionError) as error:  # of a number with too many digits Python makes none
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _resolved(read(Config, data, form=_TOML), path.resolve().parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _resolved(config: Config, folder: Path) -> Config:
    run, launcher = config.run, config.launcher
    if config.source.format is not None:
        from sentinel.sources.line_formats import format_named  # takes 0.2 s to import, and few runs name a format

        format_named(config.source.format)
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
    config = _absolute(config, folder)
    run, launcher = config.run, config.launcher
    return replace(
        config,
        run=replace(run, state_dir=state_dir, reference=tuple(path.resolve() for path in run.reference)),
        launcher=replace(launcher, log=launcher.log or state_dir / "job.log"),
    )


def _absolute(value: T, folder: Path) -> T:
    """The value with every path in it, in tables and lists too, counted from the folder."""
    found: Any = value
    if isinstance(value, Path):
        found = folder / value
    elif isinstance(value, tuple):
        found = tuple(_absolute(item, folder) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        before = {f.name: getattr(value, f.name) for f in fields(value)}
        after = {name: _absolute(item, folder) for name, item in before.items()}
        found = replace(value, **after) if after != before else value
    return cast("T", found)
