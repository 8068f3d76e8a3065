"""What an incident's rungs have come to that are no rollbacks: they wait, are skipped, or start probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A rung that only watches whether the run recovers by itself; it starts nothing and rolls nothing back."""

    rung: str
    hypothesis: str
    from_step: int
    until_step: int  # the step at which a run that is still diverged has not healed
    failed: str | None = None  # why it is over without having helped; None while it lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A rung that can't be carried out: nothing was done for it, and the next rung is tried."""

    rung: str
    hypothesis: str
    reason: str  # what can't be done, and by whom; a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Rungs that an older release tried side by side, each as a probe."""

    rungs: Mapping[str, str]  # probe -> rung
    until_step: int  # where every probe ends
    gpu_hours: float | None = None  # what the probes may take together; None where pace or size were not known
    over: bool = False
    void: bool = False  # whether no probe could be started: none of its rungs was tried
    winner: str | None = None  # the probe whose checkpoints become the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """The bisect that a rung of the incident has asked for."""

    after_attempt: int  # the run's newest attempt when it was begun; 0 for none
    over: str | None = None  # what it has come to, as a sentence; None while it goes on
    gpu_hours: float | None = None  # what its probes took; None while it goes on, or where it is not known
