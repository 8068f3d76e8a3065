"""The `[commands]` table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import POSITIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The `[commands]` table: how any scheduler is spoken to, with `[launcher] kind = "commands"`. Each is a list
    of arguments, run without a shell, with placeholders: {name} the job's name, {job} its id as `list` shows it,
    {prefix} what the names of all jobs of this run that sentinel starts begin with, {job_name}, {state_dir},
    {incident}, {rollback}; in `start` also {environment}, a JSON object of the variables that the trainer needs.
    One that fails, is late or prints what is not understood leaves the job's state unknown: nothing is done."""

    start: tuple[str, ...] = ()
    """Starts the job under the name {name} and returns. Its environment has SENTINEL_STATE_DIR, SENTINEL_ROLLBACK,
    SENTINEL_INCIDENT and SENTINEL_JOB, which it has to hand on to the trainer."""

    stop: tuple[str, ...] = ()
    """Asks for the end of {job}."""

    list: tuple[str, ...] = ()
    """Prints the jobs, ended ones too for as long as the scheduler knows them: JSON lines of "job", "name", "state"."""

    list_pattern: str | None = None
    """For a `list` that prints a table: a regular expression with the groups job, name and state."""

    list_ignore: str | None = None
    """A regular expression of the lines of `list` that are no jobs, such as a table's heading. Any other line that is
    not understood makes the state unknown."""

    states: Mapping[str, Literal["pending", "running", "ended"]] = field(default_factory=dict)
    """What the scheduler's words for a state mean: pending, running or ended. Known beforehand are pending, queued,
    waiting, suspended; running, active, stopping, terminating; ended, succeeded, complete, completed, failed, stopped,
    cancelled."""

    log: tuple[str, ...] = ()
    """Prints the output of {job}; of one that has ended, its last lines are in the page. () is not asked for."""

    timeout_s: Annotated[float, POSITIVE] = 60.0
    """Seconds that one of them may take."""

    def __post_init__(self) -> None:
        for key in ("list_pattern", "list_ignore"):
            try:
                groups = re.compile(getattr(self, key) or "").groupindex
            except re.error as error:
                raise ConfigError(f"{key} is no regular expression: {error}") from error
            if (
                key == "list_pattern"
                and self.list_pattern is not None
                and (missing := {"job", "name", "state"} - set(groups))
            ):
                raise ConfigError(f"list_pattern has no group (?P<{min(missing)}>…)")
        for key, holder in (("start", "{name}"), ("stop", "{job}")):
            words = getattr(self, key)
            if words and not any(holder in word for word in words):
                raise ConfigError(f"{key} should hold {holder}: by it the job is found again, and no other is stopped")
