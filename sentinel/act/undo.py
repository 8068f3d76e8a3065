"""undo: brings back what an incident's rollbacks took away, the last rollback first. Never deletes either."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from sentinel.act.neighbours import Neighbours
from sentinel.act.observe import Observer
from sentinel.act.perform import Ledger, quarantine
from sentinel.adapters.checkpoints import UNDONE, Checkpoints
from sentinel.durable import os_errors_named
from sentinel.plan.incident.events import closed
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.incident.log_outcomes import Done, UndoIntent
from sentinel.plan.restart.actions import span
from sentinel.plan.restart.liveness import hindered, settles
from sentinel.plan.restart.rollback import elsewhere
from sentinel.vocabulary.errors import ConfigError, JobStillAlive, QuarantineError


def undoable(incidents: tuple[Incident, ...]) -> tuple[Incident, ...]:
    """Incidents whose rollbacks or probes can be taken back, in the order to do so: the newest first."""
    there = [i for i in incidents if i.outcome != "undone" and not i.purged]
    probed = [i for i in there if (i.unfinished_probes is not None or i.bisecting) and i.status != "closed"]
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


Wait = Callable[[], None]  # returns once the checkpoints are quiet; a watch looks again instead


def take_back(
    incident: Incident,
    near: Neighbours,
    observer: Observer,
    ledger: Ledger,
    wait: Wait = lambda: None,
    *,
    without_missing: bool = False,
) -> None:
    """Stops the job, then restores checkpoints, latest*, TensorBoard and overrides of each rollback. What the restarts
    wrote goes into the quarantine in turn. Each step looks at what is there, so that an undo cut short is taken up by
    calling it again. QuarantineError before anything is done where the save folder is another one, or where something
    that was moved is nowhere; `without_missing`: a person goes on without that."""
    _perform(incident, None, near, observer, ledger, wait, without_missing=without_missing)
    ledger.record(closed(incident.id, "undone", "a person took it back"))


def settle(
    unfinished: Sequence[Incident], near: Neighbours, observer: Observer, ledger: Ledger, wait: Wait = lambda: None
) -> None:
    """Takes back what was begun and not carried out to its end, so that the next rollback starts from a whole run. Else
    it would take what it finds for the original, and its own undo would bring back something between."""
    for incident in unfinished:
        if incident.undoing == incident.id:
            take_back(incident, near, observer, ledger, wait)
            continue
        half = next((r for r in incident.rollbacks if r.id == incident.undoing), incident.half_done)
        _perform(incident, half, near, observer, ledger, wait)
        reason = "it was half done, and was taken back for what a person asked for"
        ledger.record(closed(incident.id, "superseded", reason))


@os_errors_named("a file of the run")
def _perform(
    incident: Incident,
    only: Rollback | None,
    near: Neighbours,
    observer: Observer,
    ledger: Ledger,
    wait: Wait,
    *,
    without_missing: bool = False,
) -> None:
    taken = [r for r in incident.rollbacks if r.begun and not r.taken_back and only in (None, r)]
    check_place(incident, taken, near.checkpoints, without_missing=without_missing)
    wait()
    seen = observer.fence.witnesses()
    if (why := hindered(seen) or settles(seen)) is not None:
        raise JobStillAlive(why)
    rollback_id, jobs = only.id if only else None, tuple(w.id for w in seen.jobs.writers)
    intent = UndoIntent(
        incident=incident.id, rollback=rollback_id, newest_attempt=observer.newest_attempt or 0, jobs=jobs
    )
    ledger.record(intent)
    observer.stop_probes([incident])
    near.launcher.stop(observer.started, None)
    wait()
    observer.fence.check(None)
    ledger.record(replace(intent, moves=True))
    for number, rollback in reversed(list(enumerate(incident.rollbacks))):
        if rollback in taken:
            _take_back(incident, rollback, near)
            before = incident.rollbacks[number - 1].overrides if number else incident.overrides_before
            if before is None:
                near.overrides.take_away(rollback.id)
            else:
                near.overrides.write(before)
    ledger.record(Done(incident=incident.id, rollback=rollback_id, action=intent.action))


def check_place(
    incident: Incident, taken: Sequence[Rollback], checkpoints: Checkpoints, *, without_missing: bool
) -> None:
    """QuarantineError where the save folder is another one, or something that was moved is nowhere."""
    for rollback in taken:
        if (why := elsewhere(rollback, checkpoints.files.place())) is not None:
            raise QuarantineError(f"{incident.id} is not undone: {why}")
    there = {c.tag for c in checkpoints.list()}
    there |= {tag for r in incident.rollbacks for tag in checkpoints.quarantined(incident.id, r.id)}
    missing = [tag for rollback in taken for tag in rollback.moved_tags if tag not in there]
    if missing and not without_missing:
        raise QuarantineError(
            f"{incident.id} is not undone: {span(missing)} ({len(missing)} in all), which it moved aside, "
            f"{'are' if len(missing) > 1 else 'is'} neither in {checkpoints.files.path} nor in its quarantine; mount "
            "what is not mounted, or pass --without-missing to go on without"
        )


def written_since(rollback: Rollback, there: Mapping[str, int], back: Collection[str]) -> tuple[str, ...]:
    """The checkpoints after the rollback's target that its restart has saved. `there`: tag -> step of those in the save
    folder; `back`: tags that its undo brings back."""
    later = (tag for tag, step in there.items() if step > rollback.target_step)
    return tuple(tag for tag in later if tag in back or tag not in rollback.moved_tags)


def room_for(tags: Collection[str], incident: str, rollback: str, checkpoints: Checkpoints) -> str:
    """The name of a room of the quarantine that has none of these."""
    names = (f"{rollback}{UNDONE}{f'-{n}' if n > 1 else ''}" for n in count(1))
    return next(n for n in names if not {*checkpoints.quarantined(incident, n)} & {*tags})


def begun_rollbacks(incident: Incident) -> list[Rollback]:
    """Those that undo takes back, the newest first."""
    return [r for r in reversed(incident.rollbacks) if r.begun and not r.taken_back]


def _take_back(incident: Incident, rollback: Rollback, near: Neighbours) -> None:
    checkpoints, moved = near.checkpoints, set(rollback.moved_tags)
    back = set(checkpoints.quarantined(incident.id, rollback.id))
    written = written_since(rollback, {c.tag: c.global_step for c in checkpoints.list()}, back)
    if written:
        quarantine(written, near, incident.id, room_for(written, incident.id, rollback.id, checkpoints))
    there = {c.tag for c in checkpoints.list()}
    checkpoints.pins.leave(rollback.target_step, there, moved, incident.id, rollback.id)
    checkpoints.restore(incident.id, rollback.id)
    if near.tensorboard is not None:
        near.tensorboard.restore(incident.id, rollback.id)
    if near.wandb is not None:
        near.wandb.undo(rollback.id)
