"""What was observed of the run, as plain data: what is true now, whatever was done before."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Checkpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint folder, as it stands on disk."""

    tag: str
    """Its name, as `latest` spells it, e.g. global_step3000."""

    global_step: int
    """The state after this many optimizer updates."""

    complete: bool
    """Whether every file is there that the checkpoint's own layout asks for (by name; nothing was read)."""

    verified: bool | None = None
    """Whether its files were read and found whole; None is "not yet"."""

    problem: str | None = None
    """Why it is not complete or did not verify, as a sentence."""
