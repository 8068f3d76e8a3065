"""Which tier a case belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def full(cases: Iterable[Any]) -> list[Any]:
    """These cases of a parametrised test, of the second tier: the first has one that is like them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full) for case in cases]
