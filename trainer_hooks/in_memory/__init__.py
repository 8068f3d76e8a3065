"""States of a training that each rank keeps in its host's memory, as targets of a resume in place.

`engine_state`: what the state of a DeepSpeed engine is. `store`: one rank's buffers, and whether they fit. `targets`:
which states all ranks have whole; the journal's record of each.
"""
