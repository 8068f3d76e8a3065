"""The loss ratio of a whole past, where its source has none: the same formula as live, along the line of descent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["ratios"]

Floats = NDArray[np.float64]


def ratios(
    steps: NDArray[np.int64], loss: Floats, lengths: Floats | None = None, given: Floats | None = None
) -> Floats:
    """(n,) this step's loss over the smallest loss of all previous ones at its sequence length, as `loss_ratio` has it.

    1 at the first of each length, inf where the loss is not finite. In the order in which the samples were made: where
    a step does not lie after the one before, the run went back, and with it the minimum, which travels in the
    checkpoint. `lengths` are tokens per sample, nan where not measured; `given` are the ratios that the source has,
    nan where it has none: those stand.
    """
    alike = np.zeros(len(loss)) if lengths is None else np.nan_to_num(lengths, nan=-1.0)
    found = np.empty(len(loss))
    minima: dict[float, list[tuple[int, float]]] = {}
    for part in np.split(np.arange(len(steps)), np.flatnonzero(np.diff(steps) <= 0) + 1):
        if not len(part):
            continue
        for descent in minima.values():
            while descent and descent[-1][0] >= steps[part[0]]:
                descent.pop()
        for length in np.unique(alike[part]).tolist():
            here = part[alike[part] == length]
            found[here] = _ratios(steps[here], loss[here], minima.setdefault(length, []))
    return found if given is None else np.where(np.isnan(given), found, given)


def _ratios(steps: NDArray[np.int64], loss: Floats, minima: list[tuple[int, float]]) -> Floats:
    """Of one length and growing steps. `minima` are (step, loss) of each new minimum so far; the new ones are added."""
    finite = np.isfinite(loss)
    first = minima[-1][1] if minima else np.inf
    smallest = np.minimum.accumulate(np.concatenate(([first], np.where(finite, loss, np.inf))))
    before = smallest[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(np.isposinf(before), 1.0, loss / before)
    new = np.flatnonzero(smallest[1:] < before)
    minima += zip(steps[new].tolist(), smallest[1:][new].tolist(), strict=True)
    found: Floats = np.where(finite & (before != 0), ratio, np.inf)
    return found
