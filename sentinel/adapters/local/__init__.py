"""The local launcher: a job is a process group of its own.

In: /proc, and what attempts reported. Out: the run's processes as `JobsSeen`; a process is the run's by positive
evidence alone.
"""

from sentinel.adapters.local.jobs import LocalJobs, Writer
from sentinel.adapters.local.launcher import LocalLauncher

__all__ = ["LocalJobs", "LocalLauncher", "Writer"]
