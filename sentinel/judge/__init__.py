"""From samples to a verdict. Pure."""
