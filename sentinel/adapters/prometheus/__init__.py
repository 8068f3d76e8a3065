"""Prometheus: a run's samples from what it scraped, where nothing of the run's folders can be seen."""
