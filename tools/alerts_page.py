"""Writes docs/ALERTS.md: what each alert of Prometheus means and what to do, from the rule file's annotations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tools.links import linked

__all__ = ["page"]

RULES = Path(__file__).parents[1] / "dashboards" / "rules" / "alerts.yaml"
HEAD = """# Alerts

What each alert of `dashboards/rules/alerts.yaml` means and what to do. critical: act at once; warning: the next working
day. [Pages](PAGING.md) say more and need no Prometheus. Put the address at which you serve these pages for `docs/` in
`runbook_url`.

Without a scraped watch these work: `SentinelLossNotFinite`, `SentinelVarianceMaxBurst`, `SentinelLossScaleCollapse`,
`SentinelStalled` (late), `SentinelTwoAttempts`, `SentinelHookErrors`, `SentinelExporterGone`.

This page is made from the rules by `tools/alerts_page.py` (`make pages`).
"""


def page() -> str:
    """The page, as Markdown."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return "\n".join((HEAD, *(_section(rule) for group in groups for rule in group["rules"])))


def _section(rule: dict[str, Any]) -> str:
    about, after = rule["annotations"], rule.get("for")
    when = f"{rule['labels']['severity']}, after {after}" if after else rule["labels"]["severity"]
    meaning = re.sub(r"{{ \$labels\.(\w+) }}", lambda label: label[1].upper(), about["description"])
    meaning = meaning.replace("{{ $value }}", "N")
    return f"## {rule['alert']}\n\n{when}. {linked(meaning)}\n\n{linked(about['what_to_do'])}\n"
