"""Turns: what the daemon's own loop has cost, and how often it failed."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Since the daemon began."""

    count: int = 0
    errors: int = 0
    """Turns that something went wrong in: a neighbour that did not answer, or what nobody foresaw."""

    took_s: float = 0.0
    """All of them together, wall time."""

    last_took_s: float = 0.0
    last_late_s: float = 0.0
    """How much later than it was due the last one began."""

    last_look_unix_s: float | None = None
    """When the run was last seen; None before the first time."""

    def with_turn(self, *, took_s: float, failed: bool, look_unix_s: float | None, late_s: float = 0.0) -> Turns:
        """The totals after one more turn."""
        return replace(
            self,
            count=self.count + 1,
            errors=self.errors + failed,
            took_s=self.took_s + took_s,
            last_took_s=took_s,
            last_late_s=late_s,
            last_look_unix_s=self.last_look_unix_s if look_unix_s is None else look_unix_s,
        )
