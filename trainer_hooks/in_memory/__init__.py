"""States of a training that each rank keeps in its host's memory, as targets of a resume in place: what the state of a
DeepSpeed engine is, one rank's buffers and whether they fit, which states all ranks have.

In: the engine after each step, and what the trainer would save beside it. Out: the journal's record of each state that
is kept, and the engine as it was then.
"""
