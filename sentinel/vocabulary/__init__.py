"""The records and formulas that trainer and daemon share. Pure, standard library only.

In: nothing of sentinel's. Out: the values that every other package speaks in, and how they are written and read.
"""
