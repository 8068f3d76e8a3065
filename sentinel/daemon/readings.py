"""The readings that a command is asked about: a path, or a run by its name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sentinel.act.source import read_all
from sentinel.adapters.prometheus.api import Api, Door
from sentinel.adapters.prometheus.source import ScrapedRun, ScrapedRuns
from sentinel.config import Config, load_config
from sentinel.daemon.run_files import find_config, source_log_of, state_dir_of
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.followed_log import FollowedLog
from sentinel.sources.opening import in_columns, one_source, open_log
from sentinel.sources.wandb_runs import PREFIX, source_in_wandb
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_path_text
from sentinel.vocabulary.sample import Record

__all__ = ["door_of", "scraped_run", "source_at", "source_named", "source_of_run"]


def source_named(name: str, columns: Mapping[str, str], config_dir: Path) -> ColumnSource:
    """One series: in the file or folder of that name, of the run whose configuration it is or that it names, in W&B."""
    if name.startswith(PREFIX):
        return source_in_wandb(name, columns)
    path = Path(checked_path_text(name, "PATH or NAME"))
    if path.suffix == ".toml" or path.exists():
        return source_at(path, columns)
    if (config_dir / f"{name}.toml").is_file():
        return source_of_run(find_config(name, config_dir))
    raise ConfigError(f"{name} is no file, no folder, and no run under {config_dir}")


def source_at(path: Path, columns: Mapping[str, str]) -> ColumnSource:
    """One series: in the file or folder, or of the run whose configuration it is."""
    return source_of_run(load_config(path)) if path.suffix == ".toml" else one_source(path, columns)


def scraped_run(config: Config, now: Callable[[], float] = time.time) -> ScrapedRun:
    """What Prometheus has of the run."""
    runs = ScrapedRuns(Api(door_of(config)), selector=config.source.selector, now=now)
    return runs.run(config.run.name, config.source.lookback_s)


def door_of(config: Config) -> Door:
    """Where the run's Prometheus is, and how it lets us in."""
    of = config.source
    return Door(
        url=of.url or "",
        token_file=of.token_file,
        user=of.user,
        password_file=of.password_file,
        ca_file=of.ca_file,
        timeout_s=of.timeout_s,
    )


def source_of_run(config: Config) -> ColumnSource:
    """What the run has left behind so far: its journals, its trainer's log, or what Prometheus scraped."""
    state_dir = state_dir_of(config)
    if config.source.kind == "journal":
        return one_source(state_dir, {})
    if config.source.kind == "prometheus":
        where = Path(config.source.url or "")
        return ColumnSource(where, "prometheus", lambda tally: in_columns(read_all(scraped_run(config)), tally))
    path = source_log_of(config, state_dir)
    if path.exists():
        return open_log(path, config.source.format)

    def records() -> Iterator[Record]:  # one file for each rank; what has no time of day gets none
        return read_all(FollowedLog(path, format_name=config.source.format, now=lambda: math.nan))

    if not any(True for _ in records()):
        raise ConfigError(f"nothing in {path} is a training step, or it is not there: see docs/SOURCES.md")
    return ColumnSource(path, "log", lambda tally: in_columns(records(), tally))
