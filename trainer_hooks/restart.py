"""What a start finds: in the state folder overrides.json, which sentinel decided for it, and SAVE, where a checkpoint
is wanted at the end of the step; in the checkpoint the decisions so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sentinel.vocabulary.errors import OverridesError
from sentinel.vocabulary.overrides import Once, Overrides, decode_overrides
from sentinel.vocabulary.training_settings import SkippedRange


class SaveRequest:
    """Sees the file once each time that it is written. One that was there before is an earlier attempt's."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "SAVE"
        self._seen = self._written()

    def is_new(self) -> bool:
        """Whether the file was written since the last call; costs one stat. Unreadable is no request."""
        before, self._seen = self._seen, self._written()
        return self._seen is not None and self._seen != before

    def _written(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino


def read_overrides(state_dir: Path) -> Overrides | None:
    """None where nothing was decided. OverridesError names what is wrong with it."""
    path = state_dir / "overrides.json"
    try:
        return decode_overrides(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OverridesError(f"{path}: {error.strerror}") from error


def agreed_overrides(folder: Path) -> Overrides | None:
    """What rank 0 reads, on all ranks. OverridesError on all of them where it can't be read."""
    found: list[Any] = [None, None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            found[0] = read_overrides(folder)
        except OverridesError as error:
            found[1] = str(error)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(found)
    if found[1] is not None:
        raise OverridesError(found[1])
    return found[0]  # type: ignore[no-any-return]


def largest_of_ranks(values: Sequence[int], device: Any) -> list[int]:
    """The largest of each over the ranks: the same answer on all of them."""
    largest = torch.tensor(values, device=device)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return [int(value) for value in largest.tolist()]


@dataclass(slots=True, kw_only=True)
class Decisions:
    """By which decisions a run got where it is: what any trainer's checkpoint holds of them for the next attempt."""

    attempt: int | None = None  # The attempt that saved it; None from scratch
    loss_minimum: tuple[tuple[int | None, float], ...] = ()  # As LossMinimum.state() gives it
    applied_once: tuple[str, ...] = ()  # Ids of the one-shot overrides that were applied
    moments_reset_steps: tuple[int, ...] = ()  # The steps after which Adam's moments were set to 0
    reseeds: tuple[tuple[int, int], ...] = ()  # (position in the data order, seed in force from there on)
    skipped: tuple[SkippedRange, ...] = ()  # What was left out of the data

    def left_out(self, standing: Sequence[SkippedRange] | None) -> tuple[SkippedRange, ...]:
        """With what sentinel has left out beside it."""
        return (*self.skipped, *(part for part in standing or () if part not in self.skipped))


def due(overrides: Overrides | None, made: Decisions, global_step: int) -> Once | None:
    """The one-shot changes, where this start resumes exactly at the anchor and the run has not had them yet."""
    if overrides is None or overrides.once is None or overrides.once.id in made.applied_once:
        return None
    return overrides.once if global_step == overrides.anchor.global_step else None


def decision_facts(overrides: Overrides | None, made: Decisions) -> dict[str, Any]:
    """{field of RunStarted: value} of what is in force at a start."""
    return {
        "incident": overrides.incident if overrides is not None else None,
        "rollback": overrides.rollback if overrides is not None else None,
        "applied_once": made.applied_once,
        "moments_reset_steps": made.moments_reset_steps,
    }
