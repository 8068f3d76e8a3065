"""What `list` prints, as jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sentinel.vocabulary.errors import CommandFailed

State = Literal["pending", "running", "ended"]
STATES: dict[str, State] = {
    **dict.fromkeys(("pending", "queued", "waiting", "suspended"), "pending"),
    **dict.fromkeys(("running", "active", "stopping", "terminating"), "running"),
    **dict.fromkeys(("ended", "succeeded", "complete", "completed", "failed", "stopped", "cancelled"), "ended"),
}  # of a job as `list` names them, in small letters, where [commands] states does not say otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """What the configuration says of the run's jobs."""

    prefix: str  # of the names of the jobs that sentinel starts; no other run's are named so
    state_dir: Path
    start: tuple[str, ...]
    stop: tuple[str, ...]
    list: tuple[str, ...]
    log: tuple[str, ...] = ()  # prints a job's output
    list_ignore: str | None = None  # lines that are no jobs
    list_pattern: str | None = None  # with groups `job`, `name` and `state`; None: JSON lines with these keys
    states: Mapping[str, State]  # word of `list`, in small letters -> what it means
    job_name: str | None = None  # of a job that a person has started
    working_directory: Path
    timeout_s: float
    stop_grace_s: float
    query_interval_s: float
    environment: Callable[[], dict[str, str]] = dict


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as `list` shows it."""

    job: str  # by which `stop` and `log` know it
    name: str
    state: State
    word: str  # the scheduler's own for the state


def jobs_listed(text: str, settings: CommandSettings) -> tuple[ListedJob, ...]:
    """CommandFailed names the first line that is not understood."""
    found = list[ListedJob]()
    for line in filter(str.strip, re.split(r"\r?\n", text)):
        if settings.list_ignore is not None and re.search(settings.list_ignore, line):
            continue
        matched = re.search(settings.list_pattern, line) if settings.list_pattern is not None else None
        row = _object(line) if settings.list_pattern is None else matched and matched.groupdict()
        words = [row.get(key) for key in ("job", "name", "state")] if isinstance(row, dict) else []
        if not words or not all(type(word) in (str, int) and str(word) for word in words):
            raise CommandFailed("list", f"a line is not understood: {line[:200]!r}")
        job, name, word = map(str, words)
        if (state := settings.states.get(word.lower())) is None:
            raise CommandFailed("list", f"job {job} is {word!r}, which [commands] states does not explain")
        found.append(ListedJob(job, name, state, word))
    return tuple(dict.fromkeys(found))


def _object(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return ()
