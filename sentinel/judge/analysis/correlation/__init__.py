"""Pearson's correlation of the loss ratio with what else was measured, as in the paper's Table 3, and its worth.

columns       what is correlated, from samples and from readings
table         Correlations: plain, prewhitened, corrected for the number of tests
streaming     the plain coefficient, a pair at a time
axis          steps as cells, so that a lag is a shift
lagged        coefficients at all lags, and the effective sample size, by FFT
prewhitening  a series without trend and memory
"""
