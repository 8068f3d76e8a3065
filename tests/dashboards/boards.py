"""The committed dashboards, and what of them asks Prometheus something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "dashboards"
FILES = ("spike-triage.json", "fleet.json", "sentinel-itself.json")


@dataclass(frozen=True)
class Asked:
    """One query of one panel, or of one mark."""

    board: str
    panel: str
    ref: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.board}: {self.panel}, {self.ref}"


def board(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / name).read_text()))


def panels(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All but the rows, those inside folded rows too."""
    for panel in document["panels"]:
        yield from panel.get("panels", ())
        if panel["type"] != "row":
            yield panel


def queries() -> list[Asked]:
    """Every query of every dashboard."""
    asked = []
    for name in FILES:
        document = board(name)
        for panel in panels(document):
            for target in panel["targets"]:
                instant = bool(target.get("instant"))
                asked.append(Asked(name, panel["title"], target["refId"], target["expr"], instant))
        marks = [mark for mark in document.get("annotations", {}).get("list", ()) if "expr" in mark]
        asked += [Asked(name, mark["name"], "mark", mark["expr"], instant=False) for mark in marks]
    return asked
