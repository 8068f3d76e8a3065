"""Prometheus: a run's samples from what it scraped, where nothing of the run's folders can be seen.

In: a server's address and the run's labels. Out: samples with what no scrape saw between them.
"""
