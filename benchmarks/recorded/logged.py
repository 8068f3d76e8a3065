"""From what was measured at every step to what a log shows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recorded.recipe import Recipe
from recorded.train import Row

__all__ = ["logged"]


def logged(rows: list[Row], recipe: Recipe) -> Iterator[Row]:
    """Every log_interval-th step from log_from on; the loss as the mean over the interval where recipe.average."""
    since: list[Row] = []
    for row in rows:
        since.append(row)
        step = int(row["step"] or 0)
        if step % recipe.log_interval or step < recipe.log_from:
            if step < recipe.log_from:
                since.clear()
            continue
        shown = dict(row)
        if recipe.average:
            for name in ("loss", "reference_loss"):
                values = [v for r in since if (v := r.get(name)) is not None]
                shown[name] = (
                    math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else shown.get(name)
                )
        since.clear()
        yield shown
