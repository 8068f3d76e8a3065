"""runs/NAME.toml -> a frozen Config. A wrong key or value is an error that lists the right ones.

Configured once, at the start: nothing else reads files of settings or the environment.

In: TOML text. Out: `Config`, and the paths that follow from it (`run_files`).
"""

from sentinel.config.commands_table import Commands
from sentinel.config.tables import (
    BisectSettings,
    Config,
    LauncherSettings,
    Run,
    SourceSettings,
    WatchSettings,
)
from sentinel.config.toml import field_docs, load_config, template

__all__ = [
    "BisectSettings",
    "Commands",
    "Config",
    "LauncherSettings",
    "Run",
    "SourceSettings",
    "WatchSettings",
    "field_docs",
    "load_config",
    "template",
]
