"""SplitMix64's constants and its finalizer, for the orders of data and for random-LTD's draws. Standard library only.

Source: Steele, Lea & Flood 2014, "Fast Splittable Pseudorandom Number Generators".
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The odd step and the two multipliers."""


def mixed(x: int) -> int:
    """The finalizer, of 64 bits."""
    x = (x ^ (x >> 30)) * FIRST & MASK
    x = (x ^ (x >> 27)) * SECOND & MASK
    return x ^ (x >> 31)
