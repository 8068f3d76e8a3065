"""Writes docs/METRICS.md: every metric and recorded series, from the metrics' table and the rule file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sentinel.vocabulary.metrics import DAEMON_METRICS, all_metrics

__all__ = ["page"]

RULES = Path(__file__).parents[1] / "dashboards" / "rules"
HEAD = """# Metrics

Every metric of the trainer's hook and of `sentinel watch`, and every recorded series.
[/metrics](EXPORTER.md) says how Prometheus reaches them and how to read them; [Alerts](ALERTS.md) says what to do.

This page is made from the code by `tools/metrics_page.py` (`make pages`).
"""
TRAINER = """## Metrics of the trainer

Labels: `run`, `attempt`; `layer` where the name says so.

| metric | kind | meaning |
|---|---|---|"""
WATCH = """## Metrics of `sentinel watch`

| metric | kind | labels | meaning |
|---|---|---|---|"""
RECORDED = """## Recorded series

From `dashboards/rules/recording.yaml`.

| recorded | from |
|---|---|"""


def page() -> str:
    """The page, as Markdown."""
    trainer = [f"| `{m.name}` | {m.kind} | {m.help} |" for m in all_metrics()]
    watch = [f"| `{m.name}` | {m.kind} | {', '.join(m.labels)} | {m.help} |" for m in DAEMON_METRICS]
    recorded = [f"| `{rule['record']}` | `{' '.join(rule['expr'].split())}` |" for rule in _rules("recording.yaml")]
    tables = ((TRAINER, trainer), (WATCH, watch), (RECORDED, recorded))
    return "\n".join((HEAD, *("\n".join((head, *rows, "")) for head, rows in tables)))


def _rules(name: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((RULES / name).read_text())["groups"]:
        yield from group["rules"]
