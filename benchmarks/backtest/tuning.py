"""Finds each peer's threshold and patience on the tuning part: never looks at a curve that is held out."""

from __future__ import annotations

from collections.abc import Sequence

from .curves import Curve
from .replay import said_with
from .scoring import score
from .summing import summary
from .tuned import GRID, PATIENCES, with_threshold

__all__ = ["tuned_peers"]


def tuned_peers(curves: Sequence[Curve]) -> dict[str, tuple[str, float, int]]:
    """Of each peer: threshold, value, firings in a row; of equals the first in the grid."""
    tuning = [curve for curve in curves if not curve.held_out]
    best: dict[str, tuple[str, float, int]] = {}
    for name, (attribute, values) in GRID.items():
        tried: list[tuple[int, int, float, int]] = []
        for value in values:
            make = with_threshold(name, attribute, value)
            said = [said_with(name, curve, make, PATIENCES) for curve in tuning]
            for i, patience in enumerate(PATIENCES):
                outcomes = [score(curve, each[i]) for curve, each in zip(tuning, said, strict=True)]
                tried.append((summary(name, outcomes).wrong, len(tried), value, patience))
        _, _, value, patience = min(tried)
        best[name] = attribute, value, patience
    return best
