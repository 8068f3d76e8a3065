"""Many runs watched by one process: its scheduler, its own metrics and alerts, and what builds it all."""
