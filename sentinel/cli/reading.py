"""The readings that a command is asked about: a path, or a run by its name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from sentinel.act.source import read_all
from sentinel.adapters.sources.follow import FollowedLog
from sentinel.adapters.sources.opening import in_columns, one_source, open_log
from sentinel.adapters.sources.source import ColumnSource, FileSource
from sentinel.cli.finding import find_config, source_log_of, state_dir_of
from sentinel.config import Config, load_config
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Record

__all__ = ["source_at", "source_named", "source_of_run"]


def source_named(name: str, columns: Mapping[str, str], config_dir: Path) -> ColumnSource:
    """One series: in the file or folder of that name, or of the run whose configuration it is, or that it names."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return source_at(path, columns)
    if (config_dir / f"{name}.toml").is_file():
        return source_of_run(find_config(name, config_dir))
    raise ConfigError(f"{name} is no file, no folder, and no run under {config_dir}")


def source_at(path: Path, columns: Mapping[str, str]) -> ColumnSource:
    """One series: in the file or folder, or of the run whose configuration it is."""
    return source_of_run(load_config(path)) if path.suffix == ".toml" else one_source(path, columns)


def source_of_run(config: Config) -> ColumnSource:
    """What the run has left behind so far: its journals, or its trainer's log."""
    state_dir = state_dir_of(config)
    if config.source.kind == "journal":
        return one_source(state_dir, {})
    path = source_log_of(config, state_dir)
    if path.exists():
        return open_log(path, config.source.format)

    def records() -> Iterator[Record]:  # one file for each rank; what has no time of day gets none
        return read_all(FollowedLog(path, format_name=config.source.format, now=lambda: math.nan))

    if not any(True for _ in records()):
        raise ConfigError(f"nothing in {path} is a training step, or it is not there: see docs/SOURCES.md")
    return FileSource(path, "log", lambda tally: in_columns(records(), tally))
