"""runs/NAME.toml -> a frozen Config. A wrong key or value is an error that lists the right ones.

Configured once, at the door: nothing else reads files of settings or the environment.
"""

from sentinel.config.tables import Bisect, Config, Launcher, Run, Source, Watch
from sentinel.config.toml import field_docs, load_config, template

__all__ = ["Bisect", "Config", "Launcher", "Run", "Source", "Watch", "field_docs", "load_config", "template"]
