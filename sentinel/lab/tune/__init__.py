"""Tuning the start and duration of a warmup by short real runs, as the papers do it by hand.

In: the run's trainer, and the starts and durations to try. Out: the shortest pacing without a fluctuation, and what
each probe showed.
"""
