"""Pearson's correlation of the loss ratio with what else was measured, as in the paper's Table 3, and its worth.

In: a ratio and signals by step, nan where nothing was measured. Out: coefficients with lags and p-values.
"""
