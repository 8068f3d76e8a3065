"""How long the hook waits for the other ranks: where there are more of them than processors, one may stand still."""

from __future__ import annotations

from trainer_hooks.sample import arrivals

__all__ = ["PATIENT_S", "patient"]

PATIENT_S = 200.0


def patient(seconds: float = PATIENT_S, *, last_s: float | None = None) -> None:
    """For hooks that are attached from now on, and for what one that is closed from now on still waits for.

    `last_s`: another time for those whose training is finished.
    """
    arrivals.PATIENCE_S, arrivals.LAST_PATIENCE_S = seconds, seconds if last_s is None else last_s
