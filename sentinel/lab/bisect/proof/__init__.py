"""Whether a probe was what it says: proven from its own journal over its whole window, as a restart is.

In: the probe, its journal, the run's own readings. Out: checks; a change that was not in force makes the probe "not
tried".
"""
