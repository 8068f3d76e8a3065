"""What people read of a run: the chronicle and the triage page."""
