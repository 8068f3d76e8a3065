"""Many runs watched by one process: its scheduler, its own metrics and alerts, and what builds it all.

In: the configurations of the runs. Out: watches that run, their metrics, their pages.
"""
