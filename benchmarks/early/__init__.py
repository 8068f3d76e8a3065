"""The data and the scoring of benchmarks/early_warning.py."""
