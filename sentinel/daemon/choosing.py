"""The runs that `sentinel watch` is to watch, and whether one daemon can watch them together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from sentinel.adapters.exposition.settings import Metrics
from sentinel.config import Config, load_config
from sentinel.daemon.run_files import config_path
from sentinel.vocabulary.errors import ConfigError

_SHARED = tuple(f.name for f in fields(Metrics) if f.name != "textfile")
"""Keys of [metrics] that must be the same for all runs of one daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The runs that the command line names."""

    runs: tuple[str, ...]
    """Names under `config_dir`, or paths; empty for the only one there."""

    everything: bool
    """Every configuration under `config_dir`, also those added later."""

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
            there = sorted(self.config_dir.glob("*.toml"))
            if not there:
                raise ConfigError(f"no run is configured under {self.config_dir}")
            return tuple(there)
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
        try:
            config = load_config(path)
        except ConfigError as error:
            found.wrong[path] = error
            continue
        try:
            for check in checks:
                check(config)
        except ConfigError as error:
            found.wrong[path] = ConfigError(f"{path}: {error}")
            continue
        found.configs[path] = config
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
    agree = len({_shared(config.metrics) for config in configs.values()}) == 1
    first: tuple[str, Metrics] | None = None if in_force is None or agree else ("the daemon", in_force)
    for path, config in configs.items():
        own = _own(config)
        taken = next((key for key, value in own.items() if value is not None and (key, value) in seen), None)
        if taken is not None:
            found[path] = ConfigError(f"{path} and {seen[taken, own[taken]]} have the same {taken}, {own[taken]}")
            continue
        if first is not None and _shared(first[1]) != _shared(config.metrics):
            differ = [key for key in _SHARED if getattr(first[1], key) != getattr(config.metrics, key)]
            found[path] = ConfigError(
                f"{first[0]} and {path} differ in [metrics] {', '.join(differ)}: one daemon has one /metrics"
            )
            continue
        first = first or (str(path), config.metrics)
        seen |= dict.fromkeys(own.items(), path)
    return found


def _own(config: Config) -> dict[str, object]:
    """Values that must differ between runs."""
    return {
        "[run] name": config.run.name,
        "[run] state_dir": place_of(config),
        "[metrics] textfile": config.metrics.textfile,
    }


def place_of(config: Config) -> Path:
    """The run's state folder, absolute; symbolic links are not resolved, since a hung filesystem would block that."""
    folder = config.run.state_dir or Path(".sentinel") / config.run.name
    return Path(os.path.normpath(folder.absolute()))


def _shared(metrics: Metrics) -> tuple[object, ...]:
    return tuple(getattr(metrics, key) for key in _SHARED)
