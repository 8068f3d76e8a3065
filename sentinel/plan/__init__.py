"""From a verdict to a plan. Pure."""
