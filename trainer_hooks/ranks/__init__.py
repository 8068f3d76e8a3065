"""What the ranks of a training tell one another beside its own collectives, in groups of the hook's own.

In: the process group in force, and numbers of each rank. Out: the largest of each over all ranks, or None where a
rank does not answer in time.
"""

from trainer_hooks.ranks.agreement import NotAgreedError
from trainer_hooks.ranks.exchange import Exchange
from trainer_hooks.ranks.ranks import Ranks, ranks_of_world

__all__ = ["Exchange", "NotAgreedError", "Ranks", "ranks_of_world"]
