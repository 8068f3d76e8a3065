"""A heartbeat: a file that a process of the training renews as long as it lives, step or no step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sentinel.vocabulary.codec import Form, fields_of, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import AT_LEAST_0, POSITIVE, dump_json, load_object

FOLDER = "heartbeats"
"""Below the state folder."""
BESIDE_CHECKPOINTS = ".sentinel-heartbeats"
"""Below the save folder."""
MISSED = 3
"""Renewals that a heartbeat misses until it has expired."""
RENEWED_A_SECOND = 5
"""Files that a run renews in a second, at most: the interval grows with its nodes."""

_LEAST_S = 10.0
_FORM = Form(error=LineError, name="the heartbeat", ignores_unknown=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What the file holds. Its modification time, by its filesystem's clock, is that of the last renewal; the process
    holds a POSIX lock on it where the filesystem gives one."""

    rank: Annotated[int, AT_LEAST_0]
    host: str
    pid: Annotated[int, AT_LEAST_0]
    interval_s: Annotated[float, POSITIVE]  # Between two renewals
    state_dir: str  # The run's state folder, as the trainer spells it
    process_start_ticks: int | None = None  # See RunStarted, as of the next four
    boot_id: str | None = None
    pid_namespace: str | None = None
    job_id: str | None = None
    rollback: str | None = None
    attempt: int | None = None  # Rank 0 alone knows it, once the attempt is minted
    ended: bool = False  # Whether the process has said that it ends

    @property
    def file_name(self) -> str:
        """One of each process."""
        return f"{self.rank:05d}-{self.host}-{self.pid}-{self.process_start_ticks or 0}.json"


def interval_s(nodes: int) -> float:
    """Seconds between two renewals, for a run of so many nodes; one file more lies beside the checkpoints."""
    return max(_LEAST_S, (nodes + 1) / RENEWED_A_SECOND)


def encode_heartbeat(heartbeat: Heartbeat) -> str:
    """The text of the file."""
    return dump_json(fields_of(heartbeat, without_none=True)) + "\n"


def decode_heartbeat(text: str) -> Heartbeat:
    """What the text holds. LineError says what is wrong with it."""
    return read(Heartbeat, load_object(text), form=_FORM)
