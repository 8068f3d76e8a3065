"""Where a run's configuration stands, and what follows from it alone."""

from __future__ import annotations

from pathlib import Path

from sentinel.config import Config, load_config
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name, checked_path_text

__all__ = ["config_path", "find_config", "source_log_of", "state_dir_of"]


def find_config(run: str | None, config_dir: Path) -> Config:
    """The run's configuration; see config_path."""
    return load_config(config_path(run, config_dir))


def config_path(run: str | None, config_dir: Path) -> Path:
    """Where it stands: a path to a TOML file, a name under config_dir, or the only one there is."""
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
