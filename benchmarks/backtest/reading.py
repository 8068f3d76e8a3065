"""What a peer is shown of one row."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Reading"]


class Reading(NamedTuple):
    """None is a reading that the log does not have; nan is one that is nan."""

    loss: float | None
    grad_norm: float | None
