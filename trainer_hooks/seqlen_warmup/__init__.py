"""How a batch gets shorter under sequence length warmup, token by token accounted for.

schedule.seqlen(step)  →  SeqlenWarmup.begin(step)  →  SeqlenWarmup(batch)  →  engine
                                    └─ what was cut off  →  Kept  →  packed rows, once the length is full
"""

from trainer_hooks.seqlen_warmup.kept import Kept, Run, Segment
from trainer_hooks.seqlen_warmup.shortening import SHORTENINGS
from trainer_hooks.seqlen_warmup.warmup import SeqlenWarmup

__all__ = ["SHORTENINGS", "Kept", "Run", "Segment", "SeqlenWarmup"]
