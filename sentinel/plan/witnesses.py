"""What speaks for a run's life or its end, as plain data: jobs and processes asked for by id, and files that grow."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["AttemptSeen", "Fate", "Life", "Sign"]


class Life(StrEnum):
    """Whether something may still write. Unknown never acts."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of the process or the job that an attempt has named in its journal."""

    life: Life
    sentence: str
    """What was asked, and the answer: "Slurm shows job 4711 as FAILED"."""

    certain: bool = True
    """False where the answer could be about a namesake: another machine's process, a job of another cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One attempt, as a witness."""

    number: int
    rollback: str | None = None
    """The rollback that it was started for; None for any other."""

    finished: bool = False
    """Whether it has reported its own end."""

    fate: Fate | None = None
    """None where it named neither a job nor a process."""

    grew_after_end: bool = False
    """Whether samples of it came after its job or process was seen gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A file that a trainer writes, and how long ago it was written last."""

    what: str
    """The file, as a person finds it."""

    age_s: float
    """Seconds by the clock of the file's own filesystem, or since this watch found it changed, whichever is less."""

    attempt: int | None = None
    """The attempt whose journal it is; None for what any attempt may have written."""

    checkpoint: bool = False
    """Whether it is a file of a checkpoint."""
