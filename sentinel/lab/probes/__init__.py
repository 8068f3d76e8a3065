"""One short training beside the run: its folder, its command, its life and its record.

In: a `Probe` (what to change, from which checkpoint, up to which step) and the run's own trainer. Out: a `ProbeResult`.
"""
