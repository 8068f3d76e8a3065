"""Pearson's correlation of the loss ratio with what else was measured, as in the paper's Table 3, and its worth.

streaming     the plain coefficient, a pair at a time
axis          steps as cells, so that a lag is a shift
lagged        coefficients at all lags, and the effective sample size, by FFT
prewhitening  a series without trend and memory
table         Correlations: plain, prewhitened, corrected for the number of tests
ratios        the loss ratio, where the source has none
columns       what goes into it, from samples and from readings
"""

from __future__ import annotations

from sentinel.judge.analysis.correlation.columns import (
    ALSO,
    columns_of,
    columns_of_readings,
    correlate,
    correlate_readings,
    layer_columns,
)
from sentinel.judge.analysis.correlation.lagged import cross_correlation, n_effective
from sentinel.judge.analysis.correlation.prewhitening import prewhitened
from sentinel.judge.analysis.correlation.ratios import ratios
from sentinel.judge.analysis.correlation.streaming import SlidingPearson, StreamingPearson, p_values
from sentinel.judge.analysis.correlation.table import (
    LAGS,
    SIGNALS,
    Correlation,
    Correlations,
    LagProfile,
    correlations,
    holm,
)

__all__ = [
    "ALSO",
    "LAGS",
    "SIGNALS",
    "Correlation",
    "Correlations",
    "LagProfile",
    "SlidingPearson",
    "StreamingPearson",
    "columns_of",
    "columns_of_readings",
    "correlate",
    "correlate_readings",
    "correlations",
    "cross_correlation",
    "holm",
    "layer_columns",
    "n_effective",
    "p_values",
    "prewhitened",
    "ratios",
]
