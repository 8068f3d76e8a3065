"""What is worked out of whole runs: correlation, the first mover, comparisons."""
