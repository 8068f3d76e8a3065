"""Steps as an axis of equal cells, so that a lag is a shift: holes stay holes, and no pair spans a rollback."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Where each sample lies."""

    cells: NDArray[np.int64]  # (n,) strictly increasing, from 0
    # Steps from one cell to the next: the most frequent distance of neighbouring samples (a log's interval).
    interval_steps: int

    @classmethod
    def of(cls, steps: NDArray[np.int64], lags: int) -> Axis:
        """The axis of samples in the order in which they were made.

        A step that does not lie after the one before begins a new stretch (a rollback, another attempt): it is laid so
        far behind that no lag reaches across. A hole longer than that is laid out as long as that; a step between two
        cells (Megatron logs step 1, then 10, 20, …) goes to the nearer one.
        """
        if len(steps) < 2:
            return cls(cells=np.zeros(len(steps), dtype=np.int64), interval_steps=1)
        distances = np.diff(steps)
        interval = _mode(distances[distances > 0]) if (distances > 0).any() else 1
        places = np.rint((steps - _mode(steps % interval)) / interval).astype(np.int64)
        jumps = np.diff(places)
        breaks = (distances <= 0) | (jumps > lags)
        far = _far(len(steps), lags, int(breaks.sum()))
        jumps[distances <= 0] = far
        return cls(
            cells=np.concatenate(([0], np.cumsum(np.clip(jumps, 1, far)))).astype(np.int64), interval_steps=interval
        )

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) values on the whole axis, (cells,): nan where there is no sample, or no finite value."""
        laid = np.full(int(self.cells[-1]) + 1 if len(self.cells) else 0, np.nan)
        laid[self.cells] = np.where(np.isfinite(values), values, np.nan)
        return laid


def _mode(values: NDArray[np.int64]) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def _far(n: int, lags: int, breaks: int) -> int:
    """Cells of a hole: beyond every lag, beyond n/5 (as far as n_effective looks) unless there are too many holes."""
    return max(lags + 1, min(n // 5 + 1, 4 * n // max(1, breaks)))
