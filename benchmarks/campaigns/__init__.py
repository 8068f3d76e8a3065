"""Campaigns against a run: each a program that harms, looks for what was lost, and prints a table; `make soak`.

    python -m benchmarks.campaigns.NAME [--short]      kills, exporter, fleet, failing_disk, clock

Exit 1 where anything was lost, stopped or changed that should not have been; 77 where this machine does not allow it.
"""
