"""Tuning sequence length warmup by short real runs, as its paper does it by hand."""
