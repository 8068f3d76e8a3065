"""Slurm, asked and told through its own commands."""

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.launcher import SlurmLauncher
from sentinel.adapters.slurm.queue import Queues
from sentinel.adapters.slurm.submissions import SlurmSettings

__all__ = ["Queues", "SlurmClient", "SlurmLauncher", "SlurmSettings"]
