"""Slurm, asked and told through its own commands.

In: the run's `[launcher]`, and what its attempts reported. Out: the jobs as observed; and jobs stopped, prepared and
submitted.
"""

from sentinel.adapters.slurm.client import SlurmClient
from sentinel.adapters.slurm.launcher import SlurmLauncher
from sentinel.adapters.slurm.queue import Queues
from sentinel.adapters.slurm.submissions import SlurmSettings

__all__ = ["Queues", "SlurmClient", "SlurmLauncher", "SlurmSettings"]
