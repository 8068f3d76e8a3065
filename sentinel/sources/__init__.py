"""What a run leaves behind, of whatever trainer: its readings, read whole or followed while they are written.

In: paths of logs, tables, event files or journals, of any trainer. Out: the vocabulary's records, and a count of the
lines that could not be read.
"""
