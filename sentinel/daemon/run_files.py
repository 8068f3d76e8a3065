"""Where a run's configuration is, and the paths that follow from it. Commands start with it: it imports little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.adapters.incident_log import IncidentLog
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name, checked_path_text

if TYPE_CHECKING:
    from sentinel.config import Config

clock = time.time
"""The daemon's one clock: Unix seconds, as samples carry them."""


def find_config(run: str | None, config_dir: Path) -> Config:
    """The run's configuration; see config_path."""
    from sentinel.config import load_config

    return load_config(config_path(run, config_dir))


def config_path(run: str | None, config_dir: Path) -> Path:
    """Path of the run's configuration: a TOML file, a name under config_dir, or None for the only one there."""
    if run is not None:
        path = Path(checked_path_text(run, "--run"))
        return path if path.suffix == ".toml" or path.is_file() else _named(run, config_dir)
    there = sorted(config_dir.glob("*.toml"))
    if len(there) == 1:
        return there[0]
    if not there:
        raise ConfigError(f"no run is configured under {config_dir}; `sentinel init NAME` writes a configuration")
    raise ConfigError(f"say which --run: {', '.join(p.stem for p in there)}")


def _named(run: str, config_dir: Path) -> Path:
    path = config_dir / f"{checked_name(run, '--run')}.toml"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in config_dir.glob("*.toml"))) or "none"
        raise ConfigError(f"no run {run!r} under {config_dir}; there is {there}")
    return path


def state_dir_of(config: Config) -> Path:
    """The run's state folder, absolute."""
    return (config.run.state_dir or Path(".sentinel") / config.run.name).resolve()


def source_log_of(config: Config, state_dir: Path) -> Path:
    """The log that is followed, or a pattern of several."""
    return config.source.path or config.launcher.log or state_dir / "job.log"


def incident_log_of(config: Config) -> IncidentLog:
    """The run's incident log."""
    return IncidentLog(state_dir_of(config) / "incidents.jsonl")
