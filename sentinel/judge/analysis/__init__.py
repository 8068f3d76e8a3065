"""What is worked out of whole runs: correlation, the first mover, comparisons.

In: columns of whole runs. Out: tables as values.
"""
