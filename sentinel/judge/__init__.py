"""From samples to a verdict. Pure.

In: samples and the other records of a run, in the order of its steps; thresholds. Out: a `Verdict` with its reason, and
the events of the history.
"""
