"""What is read of a training step: losses, gradients, Adam's state; on one rank, then over all ranks.

In: an engine and its optimizer in the middle of a step. Out: a `Reading` over all ranks; a reading that fails is left
out.
"""
