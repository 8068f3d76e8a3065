"""Tuning the start and duration of a warmup by short real runs, as the papers do it by hand."""
