"""What an attempt shows of its start: whether a restart's changes are in force, and whether it goes on with its run.

In: what the attempt reported, its first steps, the run before it. Out: checks with their proof, the audit of the start,
and a certificate for each checkpoint.
"""
