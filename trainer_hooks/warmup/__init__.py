"""How a batch gets shorter under sequence length warmup, token by token accounted for.

schedule.seqlen(step)  →  SeqlenWarmup.begin(step)  →  SeqlenWarmup(batch)  →  engine
                                    └─ what was cut off  →  Kept  →  packed rows, once the length is full

In: batches (B, T), and the length of the step. Out: shorter batches, and the tokens that were cut off, later.
"""

from trainer_hooks.warmup.kept import Kept, Run, Segment
from trainer_hooks.warmup.seqlen_warmup import SeqlenWarmup
from trainer_hooks.warmup.shortening import SHORTENINGS

__all__ = ["SHORTENINGS", "Kept", "Run", "Segment", "SeqlenWarmup"]
