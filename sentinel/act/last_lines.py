"""The end of a dead job's log, for the page that tells of its death: bounded, and without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sentinel import bounded
from sentinel.act.observation import Observation
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import AlertFiring, IncidentStopped

_READ_BYTES, _LINES, _LINE_CHARACTERS = 16 << 10, 12, 240
_START_S = 2.0  # two clocks: a filesystem's times may lie a little before the daemon's
# What stands behind such a name, and what looks like a key of a service that trainers log to.
_SECRETS = re.compile(
    r"(?P<name>(?:api_?key|authorization|passw(?:or)?d|secret|token)[\w-]*[\"']?\s*[:=]\s*[\"']?(?:bearer\s+|basic\s+)?)"
    r"[^\s\"',;]+"
    r"|(?P<user>://[^\s/:@]*:)[^\s/@]+(?=@)"
    r"|\b(?:hf_|gh[pousr]_|github_pat_|glsa_|sk-|xox[abprs]-|AKIA|eyJ)[\w.-]{12,}"
    r"|\b[0-9a-f]{40,}\b",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def with_last_lines(events: Iterable[IncidentEvent], look: Observation, job_log: Path) -> list[IncidentEvent]:
    """The events, with `last_lines` in those that tell of a job's death, where a job of the run has died. `job_log`:
    where the job's output goes, where the launcher does not say. Never raises."""
    jobs = look.facts.jobs
    if not jobs.known or jobs.elsewhere or any(not writer.pending for writer in jobs.writers):
        return [*events]
    log = Path(jobs.last_log) if jobs.last_log is not None else job_log
    since = max(look.facts.liveness.starts_unix_s, default=None)
    made: list[IncidentEvent] = []
    for event in events:
        if isinstance(event, IncidentStopped) or (isinstance(event, AlertFiring) and event.topic == "down"):
            made.append(replace(event, last_lines=last_lines(log, since_unix_s=since) or None))
        else:
            made.append(event)
    return made


def last_lines(log: Path, *, since_unix_s: float | None) -> str:
    """The last lines of a log; "" for one that can't be read, or that nothing was written to since then."""
    try:
        with bounded.open_regular(log) as file:
            seen = os.fstat(file.fileno())
            if since_unix_s is not None and seen.st_mtime < since_unix_s - _START_S:
                return ""
            file.seek(max(0, seen.st_size - _READ_BYTES))
            data = file.read(_READ_BYTES)
    except OSError:
        return ""
    whole = data if seen.st_size <= _READ_BYTES else data.partition(b"\n")[2]
    text = re.sub(r"[^\n]*\r(?=[^\n])", "", whole.decode("utf-8", "replace"))  # a progress bar's last state
    lines = [line.rstrip() for line in _CONTROL.sub("", text).split("\n")]
    masked = [_masked(line) for line in lines if line][-_LINES:]
    return "\n".join(line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}…" for line in masked)


def _masked(line: str) -> str:
    return _SECRETS.sub(lambda found: f"{found['name'] or found['user'] or ''}***", line)
