"""What the run's own record says changed before the onset, without any probe.

In: starts of the lineage, its readings. Out: `RecordEvidence` and the changes that a probe may undo.
"""
