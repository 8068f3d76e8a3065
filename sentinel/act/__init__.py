"""Plans are performed here, in the loop that watches a run.

In: what is decided (a `Turn`), and the adapters of one run (`Neighbours`). Out: the actions' effects, the incident
log's lines around them, and the facts of the next turn (`Observer`).
"""
