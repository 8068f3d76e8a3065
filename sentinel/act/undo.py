"""undo: brings back what an incident's rollbacks took away, the last rollback first. Never deletes either."""

from __future__ import annotations

from sentinel.act.ledger import Ledger
from sentinel.act.observe import Neighbours, Observer
from sentinel.plan.incident import Incident, Rollback
from sentinel.vocabulary.errors import ConfigError

__all__ = ["take_back", "undo_incident"]


def undo_incident(incidents: tuple[Incident, ...], wanted: str | None) -> Incident:
    """The incident to undo: the named one, or the last that has a rollback. ConfigError says which can be undone.

    Only the last one with a rollback: what an earlier one took away lies under what came after it.
    """
    undoable = [i for i in incidents if i.rollbacks and i.outcome != "undone" and not i.purged]
    if not undoable:
        raise ConfigError("there is no rollback to undo")
    if wanted is not None and wanted != undoable[-1].id:
        raise ConfigError(f"{wanted} can't be undone now; the last one with a rollback is {undoable[-1].id}")
    return undoable[-1]


def take_back(
    incident: Incident,
    near: Neighbours,
    observer: Observer,
    ledger: Ledger,
) -> None:
    """Stops the job, then restores checkpoints, latest*, TensorBoard and overrides of each rollback.

    What the restarts wrote goes into the quarantine in turn. Each step looks at what is there, so that an undo cut
    short is taken up by calling it again.
    """
    facts = {"incident": incident.id, "rollback": None, "action": {"kind": "undo"}}
    ledger.record({"event": "intent", **facts})
    near.launcher.stop(observer.started, None)
    for number, rollback in reversed(list(enumerate(incident.rollbacks))):
        _take_back(incident, rollback, near)
        before = incident.rollbacks[number - 1].overrides if number else incident.overrides_before
        if before is not None:
            near.overrides.write(before)
        else:
            near.overrides.take_away(rollback.id)
    ledger.record({"event": "done", **facts})
    ledger.closed(incident.id, "undone", "a person took it back")


def _take_back(incident: Incident, rollback: Rollback, near: Neighbours) -> None:
    moved = set(rollback.moved_tags)
    back = set(near.checkpoints.quarantined(incident.id, rollback.id))
    written_since = tuple(
        c.tag
        for c in near.checkpoints.list()
        if c.global_step > rollback.target_step and (c.tag in back or c.tag not in moved)
    )
    if written_since:
        near.checkpoints.quarantine(written_since, incident=incident.id, rollback=f"{rollback.id}-undone")
    near.checkpoints.restore(incident.id, rollback.id)
    if near.tensorboard is not None:
        near.tensorboard.restore(incident.id, rollback.id)
