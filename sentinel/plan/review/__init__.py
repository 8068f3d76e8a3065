"""Decisions made again: from kept facts, with one fact changed, or for a log that only records the run.

In: a kept turn's document, or a run's record under a policy of today. Out: the same `Turn`, and what would have changed
it.
"""
