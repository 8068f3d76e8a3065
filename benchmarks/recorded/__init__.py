"""Loss curves of small GPTs, made ill on purpose or kept well, with every signal: see README.md."""
