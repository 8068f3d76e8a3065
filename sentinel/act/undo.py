"""undo: brings back what an incident's rollbacks took away, the last rollback first. Never deletes either."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.perform import Ledger, quarantine
from sentinel.adapters.checkpoints import UNDONE, Checkpoints
from sentinel.durable import os_errors_named
from sentinel.plan.incident import Incident, Rollback
from sentinel.plan.incident_events import closed
from sentinel.plan.liveness import hindered
from sentinel.vocabulary.errors import ConfigError, JobStillAlive


def undoable(incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
    """Incidents whose rollbacks, race or bisect can be taken back, in the order to do so: the newest first."""
    there = [i for i in incidents if i.outcome != "undone" and not i.purged]
    probed = [i for i in there if (i.race is not None or i.bisecting) and i.status != "closed"]
    found = [i for i in there if i in probed or not all(r.taken_back for r in i.rollbacks)]
    found += [i for i in incidents if i.undoing and i not in found]
    return tuple(reversed(found))


def undo_incident(incidents: tuple[Incident, ...], wanted: str | None) -> Incident:
    """The incident to undo: the named one, or the last that has a rollback. ConfigError says which can be undone. Only
    the last one with a rollback: what an earlier one took away was replaced by what came after it."""
    there = undoable(incidents)
    if not there:
        raise ConfigError("there is no rollback to undo")
    if wanted in (None, there[0].id):
        return there[0]
    if wanted not in [i.id for i in there]:
        raise ConfigError(f"{wanted} can't be undone; undo is possible for {', '.join(i.id for i in there)}")
    raise ConfigError(f"{wanted} can't be undone before {there[0].id}, which is newer; `sentinel undo --all` does both")


def quarantine_of(incident: Incident, checkpoints: Checkpoints) -> tuple[str, ...]:
    """The checkpoints that the incident's rollbacks have moved into the quarantine and that undo would bring back."""
    rooms = [checkpoints.quarantined(incident.id, r.id) for r in incident.rollbacks if not r.taken_back]
    return tuple(dict.fromkeys(tag for room in rooms for tag in room))


def take_back(incident: Incident, near: Neighbours, observer: Observer, ledger: Ledger) -> None:
    """Stops the job, then restores checkpoints, latest*, TensorBoard and overrides of each rollback. What the restarts
    wrote goes into the quarantine in turn. Each step looks at what is there, so that an undo cut short is taken up by
    calling it again."""
    _perform(incident, None, near, observer, ledger)
    ledger.record(closed(incident.id, "undone", "a person took it back"))


def settle(unfinished: Sequence[Incident], near: Neighbours, observer: Observer, ledger: Ledger) -> None:
    """Takes back what was begun and not carried out to its end, so that the next rollback starts from a whole run. Else
    it would take what it finds for the original, and its own undo would bring back something between."""
    for incident in unfinished:
        if incident.undoing == incident.id:
            take_back(incident, near, observer, ledger)
            continue
        half = next((r for r in incident.rollbacks if r.id == incident.undoing), incident.half_done)
        _perform(incident, half, near, observer, ledger)
        reason = "it was half done, and was taken back for what a person asked for"
        ledger.record(closed(incident.id, "superseded", reason))


@os_errors_named("a file of the run")
def _perform(incident: Incident, only: Rollback | None, near: Neighbours, observer: Observer, ledger: Ledger) -> None:
    if (why := hindered(observer.witnesses())) is not None:
        raise JobStillAlive(why)
    facts = {"incident": incident.id, "rollback": only.id if only else None, "action": {"kind": "undo"}}
    ledger.record({"event": "intent", **facts})
    observer.stop_probes([incident])
    near.launcher.stop(observer.started, None)
    observer.fenced(None)
    for number, rollback in reversed(list(enumerate(incident.rollbacks))):
        if rollback.begun and not rollback.taken_back and only in (None, rollback):
            _take_back(incident, rollback, near)
            before = incident.rollbacks[number - 1].overrides if number else incident.overrides_before
            if before is None:
                near.overrides.take_away(rollback.id)
            else:
                near.overrides.write(before)
    ledger.record({"event": "done", **facts})


def _take_back(incident: Incident, rollback: Rollback, near: Neighbours) -> None:
    checkpoints, moved = near.checkpoints, set(rollback.moved_tags)
    back = set(checkpoints.quarantined(incident.id, rollback.id))
    later = (c.tag for c in checkpoints.list() if c.global_step > rollback.target_step)
    written_since = tuple(tag for tag in later if tag in back or tag not in moved)
    if written_since:
        names = (f"{rollback.id}{UNDONE}{f'-{n}' if n > 1 else ''}" for n in count(1))
        free = next(n for n in names if not {*checkpoints.quarantined(incident.id, n)} & {*written_since})
        quarantine(written_since, near, incident.id, free)
    there = {c.tag for c in checkpoints.list()}
    checkpoints.pins.leave(rollback.target_step, there, moved, incident.id, rollback.id)
    checkpoints.restore(incident.id, rollback.id)
    if near.tensorboard is not None:
        near.tensorboard.restore(incident.id, rollback.id)
    if near.wandb is not None:
        near.wandb.undo(rollback.id)
