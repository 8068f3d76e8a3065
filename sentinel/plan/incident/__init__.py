"""One divergence from its onset to its end, and the events of the incident log that tell of it.

In: the incident log's lines, of this release and of older ones. Out: `Incident`, with its rollbacks, waits and proofs,
and the events that a turn adds.
"""
