"""Parks, resumes and releases the trainer by files of the state folder, and sees that it was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.adapters.journal import parked_at_end
from sentinel.adapters.parking import KINDS, AnyRequest, RequestFiles
from sentinel.plan.facts import Facts
from sentinel.plan.restart.actions import Park, Release, Resume
from sentinel.vocabulary.errors import JobStillAlive
from sentinel.vocabulary.parking import ParkRequest, ReleaseRequest, ResumeRequest

_LOOKS_S = 20.0  # for which one action waits for its effect; then another turn looks again
_POLL_S, _WITNESSES_S = 0.1, 1.0  # between two looks at the journal's end; at all witnesses


@dataclass(eq=False)
class ParkedTrainer:
    """`not_parked`: why the newest attempt is not parked for a rollback, by all witnesses; None where it is."""

    state_dir: Path
    not_parked: Callable[[str], str | None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _files: RequestFiles = field(init=False)

    def __post_init__(self) -> None:
        self._files = RequestFiles(self.state_dir)

    def park(self, action: Park) -> None:
        """Returns once it is parked; JobStillAlive where it is not yet. What was asked before is left as it is."""
        request = ParkRequest(rollback=action.rollback, attempt=action.attempt, deadline_unix_s=action.deadline_unix_s)
        for kind in (ResumeRequest, ReleaseRequest):
            self._files.remove(kind)
        asked = self._files.read(ParkRequest)
        if asked is None or (asked.rollback, asked.attempt) != (request.rollback, request.attempt):
            self._files.write(request)
        end = self.clock() + _LOOKS_S
        while True:
            says = self._says_so(action)
            why = self.not_parked(action.rollback) if says else f"attempt {action.attempt} is not parked yet"
            if why is None:
                return
            if self.clock() >= end:
                raise JobStillAlive(why)
            self.sleep(_WITNESSES_S if says else _POLL_S)

    def resume(self, action: Resume) -> None:
        """Returns once the trainer has taken RESUME: it loads, and its next attempt is to report itself. JobStillAlive
        where it is not parked, has died, or has not taken it yet."""
        if (why := self.not_parked(action.rollback)) is not None:
            raise JobStillAlive(why)
        self._files.write(
            ResumeRequest(
                rollback=action.rollback,
                attempt=action.attempt,
                target=action.target,
                global_step=action.global_step,
            )
        )
        self._see_taken(action, "RESUME")

    def release(self, action: Release) -> None:
        """Returns once the trainer trains on; PARK goes first, or it would park again. JobStillAlive where it has not
        taken RELEASE yet."""
        for kind in (ParkRequest, ResumeRequest):
            self._files.remove(kind)
        self._files.write(ReleaseRequest(rollback=action.rollback, attempt=action.attempt))
        self._see_taken(action, "RELEASE")

    def tidy(self, facts: Facts) -> None:
        """Removes the files whose effect is seen, or that belong to nothing any more."""
        for kind in KINDS:
            if self._files.there(kind) and not _is_wanted(self._files.read(kind), facts):
                self._files.remove(kind)

    def _see_taken(self, action: Resume | Release, what: str) -> None:
        end = self.clock() + _LOOKS_S
        look_again = self.clock() + _WITNESSES_S
        while self._says_so(action):
            if self.clock() >= end:
                raise JobStillAlive(f"attempt {action.attempt} has not taken {what} yet")
            if self.clock() >= look_again:
                why = self.not_parked(action.rollback)
                if why is not None and self._says_so(action):  # else it has taken it between the two looks
                    raise JobStillAlive(why)
                look_again = self.clock() + _WITNESSES_S
            self.sleep(_POLL_S)

    def _says_so(self, action: Park | Resume | Release) -> bool:
        record = parked_at_end(self.state_dir)
        return record is not None and (record.attempt, record.rollback) == (action.attempt, action.rollback)


def _is_wanted(request: AnyRequest | None, facts: Facts) -> bool:
    if request is None:
        return False
    if isinstance(request, ReleaseRequest):
        parked = facts.liveness.parked
        return parked is not None and (parked.rollback, parked.attempt) == (request.rollback, request.attempt)
    incident = facts.open_incident
    current = incident.current if incident is not None else None
    if current is None or not current.in_place or current.id != request.rollback:
        return False
    return request.attempt == current.after_attempt and current.id not in facts.started_rollbacks
