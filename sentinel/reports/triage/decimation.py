"""A curve of a million readings as a few thousand of them: real readings, and every extreme among them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUCKETS", "decimated"]

BUCKETS = 4096
"""More than any screen has columns: zoomed out, nothing can be told from the whole curve."""

_WHOLE_BELOW = 4
"""Readings per bucket up to which taking some of them away is not worth it."""


def decimated(
    values: NDArray[np.float64], buckets: int = BUCKETS, always: NDArray[np.bool_] | None = None
) -> NDArray[np.intp]:
    """Places in `values`, (n,), that are kept; ascending, each once.

    The curve is cut into `buckets` of as many neighbouring readings each. Of each are kept: the first and the last, the
    smallest and the largest finite one, the first and the last nan, the first inf and the first -inf; and all that
    `always`, (n,), says. What is kept is never made up: a line through it has every peak of the whole curve, at its own
    step. nan is a reading, and the worst one: it is never hidden behind its neighbours.
    """
    n = len(values)
    if n <= buckets * _WHOLE_BELOW:
        return np.arange(n)
    width = -(-n // buckets)
    rows = -(-n // width)
    padded = np.full(rows * width, np.nan)
    padded[:n] = values
    table = padded.reshape(rows, width)
    inside = np.arange(rows * width).reshape(rows, width) < n
    finite = np.isfinite(table)
    starts = np.arange(rows) * width
    kept = np.zeros(rows * width, dtype=np.bool_)
    kept[starts] = True
    kept[np.minimum(starts + width, n) - 1] = True
    some = finite.any(axis=1)
    kept[(starts + np.where(finite, table, np.inf).argmin(axis=1))[some]] = True
    kept[(starts + np.where(finite, table, -np.inf).argmax(axis=1))[some]] = True
    bad = np.isnan(table) & inside
    for mask in (bad, np.isposinf(table), np.isneginf(table)):
        there = mask.any(axis=1)
        kept[(starts + mask.argmax(axis=1))[there]] = True
    there = bad.any(axis=1)
    kept[(starts + width - 1 - bad[:, ::-1].argmax(axis=1))[there]] = True
    if always is not None:
        kept[:n] |= always
    return np.flatnonzero(kept[:n])
