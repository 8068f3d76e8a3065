"""Weights & Biases: the runs that others log there are read, and runs of sentinel's own drawn beside them."""
