"""The bisect that a rung of the ladder asks for, one step at each of the watch's turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sentinel.act.bisect import Bisect
from sentinel.adapters.lock import RunLock
from sentinel.durable import make_folders
from sentinel.judge.history import History
from sentinel.plan.incident import Incident
from sentinel.plan.observation import BisectSeen, RunState
from sentinel.vocabulary.errors import ConfigError, FilesystemRefused, LockHeld, PermanentError


@dataclass
class Bisecting:
    """`make` makes the bisect of an incident; ConfigError where none can be run here."""

    make: Callable[[Incident, History, RunState], Bisect]
    _made: dict[str, Bisect] = field(default_factory=dict, init=False)
    _problems: dict[str, str] = field(default_factory=dict, init=False)  # incident -> why it could not go on

    def seen(self, incident: Incident, history: History, run: RunState) -> BisectSeen:
        """Where the incident's bisect stands; over where it can't be run, or could not go on."""
        try:
            if (problem := self._problems.get(incident.id)) is not None:
                return BisectSeen(reason=problem, over=True)
            made = self._of(incident, history, run)
            made.reread()
            return made.seen
        except (ConfigError, PermanentError) as error:
            return BisectSeen(reason=f"the cause can't be looked for: {error}", over=True)

    def follow(self, incident: str) -> None:
        """One step further, unless a person's own command goes on with it."""
        made = self._made[incident]
        make_folders(made.folder)
        try:
            with contextlib.suppress(LockHeld), RunLock(made.folder):
                made.step()
        except FilesystemRefused:
            raise
        except (ConfigError, PermanentError) as error:
            self._problems[incident] = f"the bisect can't go on: {error}"

    def stop_all(self, incidents: Sequence[Incident]) -> None:
        """Stops what still runs of the bisects that were `seen` to go on: a person has decided otherwise."""
        for incident in incidents:
            if incident.bisecting and incident.id in self._made:
                self._made[incident.id].probes.stop_all()

    def _of(self, incident: Incident, history: History, run: RunState) -> Bisect:
        if incident.id not in self._made:
            self._made = {incident.id: self.make(incident, history, run)}
        return self._made[incident.id]
