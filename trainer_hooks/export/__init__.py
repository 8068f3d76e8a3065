"""Where samples go: the metrics journal, and /metrics for Prometheus."""
