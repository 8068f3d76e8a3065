"""The runs' configurations, and the paths that follow from them. Commands start with it: it imports little."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.incident_log import IncidentLog
from sentinel.config import Config, load_config
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name, checked_path_text

clock = time.time
"""The daemon's one clock: Unix seconds, as samples carry them."""


def find_config(run: str | None, config_dir: Path) -> Config:
    return load_config(config_path(run, config_dir))


def config_path(run: str | None, config_dir: Path) -> Path:
    """Path of the run's configuration: a TOML file, a name under config_dir, or None for the only one there."""
    if run is None:
        there = sorted(config_dir.glob("*.toml"))
        if len(there) == 1:
            return there[0]
        if not there:
            raise ConfigError(f"no run is configured under {config_dir}; `sentinel init NAME` writes a configuration")
        raise ConfigError(f"say which --run: {', '.join(p.stem for p in there)}")
    path = Path(checked_path_text(run, "--run"))
    if path.suffix == ".toml" or path.is_file():
        return path
    path = config_dir / f"{checked_name(run, '--run')}.toml"
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in config_dir.glob("*.toml"))) or "none"
        raise ConfigError(f"no run {run!r} under {config_dir}; there is {names}")
    return path


def state_dir_of(config: Config) -> Path:
    """The run's state folder, absolute."""
    return (config.run.state_dir or Path(".sentinel") / config.run.name).resolve()


def source_log_of(config: Config, state_dir: Path) -> Path:
    """The log that is followed, or a pattern of several."""
    return config.source.path or config.launcher.log or state_dir / "job.log"


def bisect_folder(config: Config) -> Path:
    """Where the bisects of the run's incidents are, one folder each. Other runs may have the same `[bisect] folder`."""
    own = config.bisect.folder
    return (state_dir_of(config) / "bisect" if own is None else own / config.run.name).resolve()


def incident_log_of(config: Config) -> IncidentLog:
    return IncidentLog(state_dir_of(config) / "incidents.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The runs that `sentinel watch` is to watch."""

    runs: tuple[str, ...]  # names under `config_dir`, or paths; empty for the only one there
    everything: bool  # every configuration under `config_dir`, also those added later
    config_dir: Path

    @property
    def alone(self) -> bool:
        """Whether it is one run, and no other can be added."""
        return not self.everything and len(self.runs) < 2

    def paths(self) -> tuple[Path, ...]:
        """Paths of their configurations. ConfigError names all that are missing."""
        if self.everything:
            if self.runs:
                raise ConfigError("--all and --run: pass one of them")
            if there := sorted(self.config_dir.glob("*.toml")):
                return tuple(there)
            raise ConfigError(f"no run is configured under {self.config_dir}")
        found, wrong = [], []
        for run in self.runs or (None,):
            try:
                found.append(config_path(run, self.config_dir))
            except ConfigError as error:
                wrong.append(str(error))
        if wrong:
            raise ConfigError("; ".join(wrong))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Read:
    """Configurations, and the errors of the files that hold none."""

    configs: dict[Path, Config]
    wrong: dict[Path, ConfigError]


def read(paths: tuple[Path, ...], *checks: Callable[[Config], None]) -> Read:
    """Reads each; errors of the checks are prefixed with the file."""
    found = Read({}, {})
    for path in dict.fromkeys(paths):
        config: Config | None = None
        try:
            config = load_config(path)
            for check in checks:
                check(config)
            found.configs[path] = config
        except ConfigError as error:
            found.wrong[path] = error if config is None else ConfigError(f"{path}: {error}")
    return found


def conflicts(
    configs: Mapping[Path, Config], in_force: Metrics | None = None, stay: Mapping[Path, Config] = MappingProxyType({})
) -> dict[Path, ConfigError]:
    """Configurations that one daemon can't watch together with those before them; each error names both files.

    `in_force` is the daemon's [metrics], which others are compared with; `stay` are runs that go on with the
    configuration that they had before their file was changed.
    """
    found: dict[Path, ConfigError] = {}
    seen: dict[tuple[str, object], Path] = {key: path for path, config in stay.items() for key in _own(config).items()}
    agree = len({tuple(_shared(config.metrics).items()) for config in configs.values()}) == 1
    first: tuple[str, Metrics] | None = None if in_force is None or agree else ("the daemon", in_force)
    for path, config in configs.items():
        own, shared = _own(config), _shared(config.metrics)
        taken = next((key for key, value in own.items() if value is not None and (key, value) in seen), None)
        if taken is not None:
            found[path] = ConfigError(f"{path} and {seen[taken, own[taken]]} have the same {taken}, {own[taken]}")
            continue
        first = first or (str(path), config.metrics)
        if differ := [key for key, value in _shared(first[1]).items() if value != shared[key]]:
            found[path] = ConfigError(
                f"{first[0]} and {path} differ in [metrics] {', '.join(differ)}: one daemon has one /metrics"
            )
            continue
        seen |= dict.fromkeys(own.items(), path)
    return found


def _own(config: Config) -> dict[str, object]:
    """Values that must differ between runs."""
    return {
        "[run] name": config.run.name,
        "[run] state_dir": place_of(config),
        "[metrics] textfile": config.metrics.textfile,
    }


def _shared(metrics: Metrics) -> dict[str, object]:
    """Keys of [metrics] that must be the same for all runs of one daemon."""
    return {f.name: getattr(metrics, f.name) for f in fields(metrics) if f.name != "textfile"}


def place_of(config: Config) -> Path:
    """The run's state folder, absolute; symbolic links are not resolved, since a hung filesystem would block that."""
    folder = config.run.state_dir or Path(".sentinel") / config.run.name
    return Path(os.path.normpath(folder.absolute()))
