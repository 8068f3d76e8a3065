"""W&B: the `[wandb]` table, its API, its offline files. The library is optional.

In: a project's name and a key. Out: runs' rows and files, branches and drawings.
"""

from sentinel.adapters.wandb.project import Outcome, Wandb, draw_offline
from sentinel.adapters.wandb.settings import Drawing, Row, WandbRun

__all__ = ["Drawing", "Outcome", "Row", "Wandb", "WandbRun", "draw_offline"]
