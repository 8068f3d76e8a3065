"""Why a run diverged, by probes: one repeats the run, each other one changes one thing.

In: an incident, and the readings around its onset. Out: the causes that the results support, the most likely first.
"""
