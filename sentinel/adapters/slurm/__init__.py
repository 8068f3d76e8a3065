"""Slurm, asked and told through its own commands."""

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.launcher import SlurmLauncher, SlurmSettings

__all__ = ["SlurmClient", "SlurmLauncher", "SlurmSettings"]
