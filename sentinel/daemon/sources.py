"""Where a run's readings come from: its journals, its trainer's log, or a Prometheus; and the readings of any path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from sentinel.act.source import Source, read_all
from sentinel.adapters.journal import Journals
from sentinel.adapters.prometheus.api import Api, Door
from sentinel.adapters.prometheus.source import ScrapedRun, ScrapedRuns
from sentinel.config import Config, load_config
from sentinel.config.run_files import clock, find_config, source_log_of, state_dir_of
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_path_text
from sentinel.vocabulary.sample import Record

if TYPE_CHECKING:
    from sentinel.sources.column_source import ColumnSource

Sources = Callable[[Config, Path], Source]  # by the run's configuration and its state folder

_LONGEST_POLL_S = 2.0  # of a turn that reading a backlog may take: other runs wait for the thread


def source_of(config: Config, state_dir: Path) -> Source:
    """The source that a watch of this run alone polls."""
    if config.source.kind == "log":
        return _followed_log(config, state_dir, clock)
    if config.source.kind == "prometheus":
        return _scraped_run(config)
    return Journals(state_dir)


class SharedSources:
    """The sources of one daemon: runs of the same Prometheus share its queries. A second request for a run reads it
    from its beginning."""

    def __init__(self) -> None:
        self._scraped: dict[tuple[Door, str | None], ScrapedRuns] = {}
        self._lock = Lock()

    def __call__(self, config: Config, state_dir: Path) -> Source:
        if config.source.kind != "prometheus":
            return source_of(config, state_dir)
        key = (_door_of(config), config.source.selector)
        with self._lock:
            if key not in self._scraped:
                self._scraped[key] = _scraped_runs(config, longest_poll_s=_LONGEST_POLL_S)
            return self._scraped[key].run(config.run.name, config.source.lookback_s)


def source_named(name: str, columns: Mapping[str, str], config_dir: Path) -> ColumnSource:
    """One series: a file, a folder, a run's TOML file, the name of a run under `config_dir`, or a run in W&B."""
    from sentinel.sources import wandb_runs  # pyarrow comes with it: a watch needs none of it

    if name.startswith(wandb_runs.PREFIX):
        return wandb_runs.source_in_wandb(name, columns)
    path = Path(checked_path_text(name, "PATH or NAME"))
    if path.suffix == ".toml" or path.exists():
        return source_at(path, columns)
    if (config_dir / f"{name}.toml").is_file():
        return source_of_run(find_config(name, config_dir))
    raise ConfigError(f"{name}: no such file or folder, and no such run under {config_dir}")


def source_at(path: Path, columns: Mapping[str, str]) -> ColumnSource:
    """One series: in the file or folder, or of the run whose configuration it is."""
    from sentinel.sources.opening import one_source

    return source_of_run(load_config(path)) if path.suffix == ".toml" else one_source(path, columns)


def source_of_run(config: Config) -> ColumnSource:
    """All readings of the run so far, as columns; none where no attempt has begun."""
    from sentinel.sources.column_source import ColumnSource
    from sentinel.sources.journals import journals_as_columns
    from sentinel.sources.opening import in_columns, open_log

    state_dir = state_dir_of(config)
    if config.source.kind == "journal":
        return journals_as_columns(state_dir)
    if config.source.kind == "prometheus":
        where = Path(config.source.url or "")
        return ColumnSource(where, "prometheus", lambda tally: in_columns(read_all(_scraped_run(config)), tally))
    path = source_log_of(config, state_dir)
    if path.exists():
        return open_log(path, config.source.format, _columns(config))

    def records() -> Iterator[Record]:  # one file for each rank; lines without a time of day get nan
        return read_all(_followed_log(config, state_dir, lambda: math.nan))

    if not any(True for _ in records()):
        raise ConfigError(f"{path}: no training step found, or no such file; see docs/SOURCES.md")
    return ColumnSource(path, "log", lambda tally: in_columns(records(), tally))


def _followed_log(config: Config, state_dir: Path, now: Callable[[], float]) -> Source:
    from sentinel.sources.followed_log import FollowedLog

    source = config.source
    return FollowedLog(source_log_of(config, state_dir), format_name=source.format, columns=_columns(config), now=now)


def _columns(config: Config) -> dict[str, str]:
    """The names that the configuration gives, field to name."""
    named = {"loss": config.source.loss, "step": config.source.step}
    return {ours: theirs for ours, theirs in named.items() if theirs}


def _scraped_run(config: Config) -> ScrapedRun:
    return _scraped_runs(config).run(config.run.name, config.source.lookback_s)


def _scraped_runs(config: Config, *, longest_poll_s: float = 30.0) -> ScrapedRuns:
    api = Api(_door_of(config))
    return ScrapedRuns(api, selector=config.source.selector, longest_poll_s=longest_poll_s, now=clock)


def _door_of(config: Config) -> Door:
    keys = ("token_file", "user", "password_file", "ca_file", "timeout_s")
    return Door(url=config.source.url or "", **{key: getattr(config.source, key) for key in keys})
