"""Where samples go: the metrics journal, and /metrics for Prometheus.

In: records of rank 0. Out: lines of a journal, metric families, heartbeats; a full disk or a slow reader costs records,
never a step.
"""
