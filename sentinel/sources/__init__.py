"""What a run leaves behind, of whatever trainer: its readings, read whole or followed while they are written."""
