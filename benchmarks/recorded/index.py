"""INDEX.csv: one row per curve, made from its recipe and from what was logged."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from recorded.curves import INDEX_COLUMNS, held_out, read_curve
from recorded.label import label
from recorded.recipe import Recipe

__all__ = ["write_index"]


def write_index(recipes: Iterable[Recipe], curves: Path, to: Path) -> list[dict[str, object]]:
    """Labels every curve that is there; returns the rows."""
    rows = []
    for recipe in recipes:
        path = curves / f"{recipe.name}.csv.xz"
        if path.exists():
            rows.append(_row(recipe, path))
    rows.sort(key=lambda row: (str(row["label"]), str(row["name"])))
    with to.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, INDEX_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return rows


def _row(recipe: Recipe, path: Path) -> dict[str, object]:
    curve = read_curve(path)
    loss = [math.nan if value is None else value for value in curve["loss"]]
    steps = [int(step) for step in curve["step"] if step is not None]
    judged = label(recipe, curve)
    numbers = "; ".join(f"{name} {value:.3g}" for name, value in judged.numbers.items())
    return {
        "name": recipe.name,
        "label": judged.label,
        "events": " ".join(judged.events),
        "repo": "",
        "path": f"curves/{path.name}",
        "commit": "",
        "licence": "Apache-2.0",
        "n_points": len(steps),
        "first_step": steps[0],
        "last_step": steps[-1],
        "log_interval": recipe.log_interval,
        "has_grad_norm": "yes",
        "has_lr": "yes",
        "n_nonfinite_loss": sum(not math.isfinite(value) for value in loss),
        "short": "no",
        "confidence": judged.confidence,
        "note": "; ".join(said for said in (recipe.note, judged.note, numbers) if said),
        "cause": recipe.cause,
        "seed": recipe.seed,
        "held_out": "yes" if held_out(recipe.cause) else "no",
        "regime": " ".join(recipe.regime),
    }
