"""Performs a plan's actions, logging around each; the same code resumes a plan cut short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sentinel.durable import os_errors_named
from sentinel.plan.actions import Action, to_json
from sentinel.vocabulary.errors import SentinelError

__all__ = ["Perform", "Record", "execute"]

Perform = Callable[[Action], None]
"""Does one action and returns when its effect has been seen; raises a SentinelError when it was not."""

Record = Callable[[Mapping[str, Any]], None]
"""Appends one event to the incident log, and returns when it is on the disk."""


def execute(
    action: Action,
    incident: str | None,
    rollback: str | None,
    perform: Perform,
    record: Record,
    *,
    newest_attempt: int | None = None,
) -> None:
    """Performs one action of a plan, and raises what it raised.

    One at a time: after each, the run is looked at and planned for again, since what was true when the plan was made
    (`latest`, the checkpoints) may have moved until the job was fenced. `incident` is None for a restart after a crash.
    `newest_attempt` is the last that was known: what a later one does has come after the action, by whatever clock.
    """
    facts = {"incident": incident, "rollback": rollback, "action": to_json(action)}
    record({"event": "intent", **facts, "newest_attempt": newest_attempt})
    try:
        with os_errors_named("a file of the run"):
            perform(action)
    except Exception as error:
        # Also what nobody foresaw: an intent without an end would look like a daemon that was killed.
        reason = str(error) if isinstance(error, SentinelError) else repr(error)
        with contextlib.suppress(SentinelError):  # a full disk has no room for the log either: say what came first
            record({"event": "failed", **facts, "reason": reason})
        raise
    record({"event": "done", **facts})
