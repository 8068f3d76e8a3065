"""Random layerwise token dropping: the middle layers see a random subset of each sample's tokens, the rest bypass them.

Yao et al. 2022, "Random-LTD" (arXiv:2211.11586); Li et al. 2022, "DeepSpeed Data Efficiency" (arXiv:2212.03597). Read
draw (which tokens), arguments (masks and positions of the kept tokens), routing (gather and scatter), layer (a layer's
forward) and random_ltd (a model's, and the tokens consumed).

In: a model's layers and a schedule. Out: a forward pass with fewer tokens, and how many it consumed.
"""

from trainer_hooks.random_ltd.layer import DataRank
from trainer_hooks.random_ltd.random_ltd import KeptTokens, LayerTokens, RandomLtd, Schedule
from trainer_hooks.random_ltd.routing import PlainTorch, Routing

__all__ = ["DataRank", "KeptTokens", "LayerTokens", "PlainTorch", "RandomLtd", "Routing", "Schedule"]
