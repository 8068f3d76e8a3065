"""Tries small changes of the code that would harm a run, and counts those that no test notices."""
