"""Numbers as logs write them: nan and inf in any case, 85.8G, 11.5K, 1,048,576, 6.4E+00, 1.2%."""

from __future__ import annotations

import math
import re

__all__ = ["not_finite", "number", "whole"]

_WORDY = re.compile(r"\s*([-+]?(?:\d[\d,]*)?(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([KMBGT])?(?:ms|s|%|it|GiB|GB|MB)?\s*")
_NOT_FINITE = re.compile(
    r"\s*([-+]?)(?:(nan\((?:s?nan|ind|snan|0x[0-9a-f]+)?\)|1\.#(?:[qs]nan|ind)0*)|1\.#inf0*|\u221e)\s*", re.IGNORECASE
)
"""Microsoft's C library, glibc with a payload, and JavaScript's sign."""

_TIMES = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12, None: 1.0}
_MOST = 2**63
_LONGEST = 64
"""Characters; a longer run of digits is no reading."""


def number(text: str) -> float | None:
    """The number that the text is; None where it is none. K, M, B (or G) and T count in powers of 1000."""
    if len(text) > _LONGEST:
        return None
    try:
        return float(text)
    except ValueError:
        found = _WORDY.fullmatch(text)
    if found is None:
        return not_finite(text)
    try:
        return float(found[1].replace(",", "")) * _TIMES[found[2]]
    except ValueError:
        return None


def not_finite(text: str) -> float | None:
    """nan or an infinity in one of the spellings that Python does not take; None for anything else."""
    found = _NOT_FINITE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    if found[2] is not None:
        return math.nan
    return -math.inf if found[1] == "-" else math.inf


def whole(text: str) -> int | None:
    """The whole number that the text is, not negative and below 2^63; None where it is none."""
    try:
        value = int(text) if len(text) <= _LONGEST else -1
    except ValueError:
        read = number(text)
        if read is None or not 0 <= read < _MOST:  # nan too
            return None
        value = round(read)
    return value if 0 <= value < _MOST else None
