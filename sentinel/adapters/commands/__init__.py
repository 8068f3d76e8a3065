"""A scheduler that is spoken to by commands of the configuration: Kubernetes, Ray, Grid Engine, PBS, a site's own.

In: argument lists, and what they print. Out: the run's jobs as `JobsSeen`; what is not understood is unknown.
"""

from sentinel.adapters.commands.launcher import CommandsLauncher
from sentinel.adapters.commands.listed import STATES, CommandSettings

__all__ = ["STATES", "CommandSettings", "CommandsLauncher"]
