"""What `sentinel undo` would move, and where to, in its order. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.act.neighbours import Neighbours
from sentinel.act.undo import begun_rollbacks, check_place, room_for, written_since
from sentinel.plan.incident.incident import Incident, Rollback


def preview(incidents: Sequence[Incident], near: Neighbours, *, without_missing: bool = False) -> Iterator[str]:
    """The moves, a line each, of the incidents in their order: of each its rollbacks, the newest first. QuarantineError
    as `take_back` before it does anything."""
    there = {c.tag: c.global_step for c in near.checkpoints.list()}
    for incident in incidents:
        taken = begun_rollbacks(incident)
        check_place(incident, taken, near.checkpoints, without_missing=without_missing)
        for rollback in taken:
            yield from _of_checkpoints(incident.id, rollback, there, near)
            yield from _of_logs(incident.id, rollback, near)
            yield _of_overrides(incident, rollback, near)


def _of_checkpoints(incident: str, rollback: Rollback, there: dict[str, int], near: Neighbours) -> Iterator[str]:
    """`there` is changed to what is in the save folder afterwards."""
    checkpoints, folder = near.checkpoints, near.checkpoints.folder
    back = checkpoints.quarantined(incident, rollback.id)
    if written := written_since(rollback, there, back):
        aside = checkpoints.room_of(incident, room_for(written, incident, rollback.id, checkpoints))
        yield from (_moved(folder / tag, aside / tag) for tag in written)
    room = checkpoints.room_of(incident, rollback.id)
    yield from (_moved(room / tag, folder / tag) for tag in back)
    for tag in written:
        del there[tag]
    there.update({tag: checkpoints.pins.step_of(tag) for tag in back})
    for name, text in checkpoints.trackers_kept(incident, rollback.id).items():
        yield f"{folder / name} is moved to {room}" if text is None else f"{folder / name} says {text!r} again"


def _of_logs(incident: str, rollback: Rollback, near: Neighbours) -> Iterator[str]:
    if near.tensorboard is not None:
        yield from (_moved(*pair) for pair in near.tensorboard.moves_back(incident, rollback.id))
    if near.wandb is not None:
        yield f"W&B: the next start logs to the run of before {rollback.id}"


def _of_overrides(incident: Incident, rollback: Rollback, near: Neighbours) -> str:
    number = incident.rollbacks.index(rollback)
    before = incident.rollbacks[number - 1].overrides if number else incident.overrides_before
    path = near.state_dir / "overrides.json"
    if before is None:
        return _moved(path, path.with_name(f"overrides.{rollback.id}.undone.json"))
    return f"{path} is that of {before.rollback} again"


def _moved(source: Path, destination: Path) -> str:
    return f"{source} -> {destination}"
