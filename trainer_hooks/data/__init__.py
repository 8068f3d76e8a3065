"""Curriculum learning's data: how difficult each sample is, and which samples each step takes.

`python -m trainer_hooks.data analyze` builds indexes (rows → metrics → shards → sorting → index); a trainer reads them
with `Index.load` and draws from them with `CurriculumOrder` (permutation → pool → sampler → order). No torch here.

In: token files, and metrics of a sample. Out: indexes on the disk, and the order of the samples.
"""

from trainer_hooks.data.index import Index
from trainer_hooks.data.order import CurriculumOrder
from trainer_hooks.data.pool import Pace
from trainer_hooks.data.sampler import CurriculumSampler
from trainer_hooks.gpt.order import Order

__all__ = ["CurriculumOrder", "CurriculumSampler", "Index", "Order", "Pace"]
