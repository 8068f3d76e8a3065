"""Parts of benchmarks/start_audit.py."""
