"""What the dashboards may ask Prometheus for, and in which words: the metrics' table, and nothing beside it."""

from __future__ import annotations

from sentinel.vocabulary.metrics import DAEMON_METRICS, all_metrics

__all__ = ["ATTEMPTS", "RUN", "SELECTED", "VERDICTS", "help_of", "most_of"]

VERDICTS: dict[str, str] = {
    "healthy": "green",
    "warming_up": "blue",
    "spike": "yellow",
    "diverged": "red",
    "pending": "text",
    "starting": "super-light-blue",
    "stalled": "orange",
    "down": "dark-red",
    "blind": "purple",
    "finished": "semi-dark-green",
}
"""{verdict: Grafana's name of its colour}."""

ATTEMPTS = (
    "light-red", "green", "yellow", "light-blue", "orange", "purple", "super-light-green", "light-orange",
    "dark-blue", "light-purple",
)  # fmt: skip
"""The colour of an attempt, by the last digit of its number."""

RUN = 'run="$run"'
SELECTED = f'{RUN},attempt=~"$attempt"'
"""The selectors of one run, and of those of its attempts that are looked at."""


def help_of(name: str) -> str:
    """What the metric is, in the words of /metrics."""
    return next(metric.help for metric in (*all_metrics(), *DAEMON_METRICS) if metric.name == name)


def most_of(recorded: str) -> str:
    """The largest of what was recorded since the point before: at whatever step it is drawn, none falls between two."""
    return f"max_over_time({recorded}[$__rate_interval])"
