"""The documented path of sequence length warmup in any training loop."""

from trainer_hooks.warmup import SHORTENINGS, Kept, Run, Segment, SeqlenWarmup

__all__ = ["SHORTENINGS", "Kept", "Run", "Segment", "SeqlenWarmup"]
