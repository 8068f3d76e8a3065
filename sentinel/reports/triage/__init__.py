"""One HTML page on which a run is understood: what diverged, what led, what was done about it, whether it helped."""
