"""What the run's folders hold now, with what was verified of the checkpoints since the daemon began."""

from __future__ import annotations

from dataclasses import replace

from sentinel.act.board import BoardReach
from sentinel.act.neighbours import Neighbours
from sentinel.adapters.checkpoints import SaveFolderSeen
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import Checkpoint, FoldersSeen


class FolderReader:
    """`room_for_saves`: saves for which there has to be room; 0 asks for none."""

    def __init__(self, neighbours: Neighbours, room_for_saves: int) -> None:
        self._near, self._room_for_saves = neighbours, room_for_saves
        self._board = BoardReach(neighbours.tensorboard)
        self._verified: dict[str, Checkpoint] = {}

    def read(self, incidents: tuple[Incident, ...], *, room: bool, fresh: bool) -> FoldersSeen:
        """`room`: count the free space also while no incident is open; `fresh`: nothing remembered counts."""
        near, seen = self._near, self._near.checkpoints.look(fresh=fresh)
        board = self._board.look(now=fresh or any(i.status != "closed" for i in incidents))
        return FoldersSeen(
            checkpoints=self._checkpoints(seen),
            place=near.checkpoints.files.place(),
            latest_tag=seen.latest,
            by_newest=seen.by_newest,
            disagreement=seen.disagreement,
            room_problem=self._room_problem() if room or any(i.status == "open" for i in incidents) else None,
            quarantined=seen.incidents,
            overrides=near.overrides.read(),
            tensorboard_past=board.step,
            tensorboard_samples=board.samples,
            tensorboard_git=board.git,
            wandb=near.wandb.seen() if near.wandb else None,
        )

    def verified(self, checkpoint: Checkpoint) -> None:
        """Remembers what reading a checkpoint whole has shown, until the daemon ends; nothing of one that changed
        meanwhile: what comes back under its name, from a pin, is to be read."""
        if checkpoint.verified is not None:
            self._verified[checkpoint.tag] = checkpoint

    def forget(self, tags: tuple[str, ...]) -> None:
        """Forgets what was verified of checkpoints that were moved: others may come under their names."""
        for tag in tags:
            self._verified.pop(tag, None)

    def _checkpoints(self, seen: SaveFolderSeen) -> tuple[Checkpoint, ...]:
        """Those that are there, with what was verified of them, and those of which only the pin is."""
        found = list(seen.checkpoints)
        for n, c in enumerate(found) if self._verified else ():
            if c.complete and (known := self._verified.get(c.tag)) is not None:
                found[n] = replace(c, verified=known.verified, problem=known.problem, verification=known.verification)
        pins = self._near.checkpoints.pins
        gone = set(seen.pinned) - {c.tag for c in found} if seen.pinned else ()
        found += [Checkpoint(tag=t, global_step=pins.step_of(t), complete=True, only_pinned=True) for t in gone]
        return tuple(sorted(found, key=lambda c: c.global_step))

    def _room_problem(self) -> str | None:
        """Walks a whole checkpoint to count."""
        if not self._room_for_saves:
            return None
        try:
            room = self._near.checkpoints.room_for_saves(self._room_for_saves)
        except OSError as error:
            return f"the free space can't be counted: {error}"
        return room.problem if room else None
