"""Does one action through the adapters, and returns when its effect has been seen.

Before anything is moved it is looked once more whether the job is gone: the plan was made a moment ago.
"""

from __future__ import annotations

import logging
from typing import assert_never

from sentinel.act.observe import Neighbours, Observer
from sentinel.plan.actions import (
    Action,
    CutTensorBoard,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)

__all__ = ["Performer"]

log = logging.getLogger(__name__)


class Performer:
    """The hands of a watch; `__call__` is a `Perform`."""

    def __init__(self, neighbours: Neighbours, observer: Observer) -> None:
        self._near = neighbours
        self._observer = observer

    def __call__(self, action: Action) -> None:
        near, started = self._near, self._observer.started
        match action:
            case VerifyCheckpoint(tag):
                self._observer.verified(near.checkpoints.verify(tag))
            case PrepareJob(_, rollback):
                near.launcher.prepare(rollback, started)
            case StopJob(_, spare):
                near.launcher.stop(started, spare)
            case QuarantineCheckpoints(tags, incident, rollback):
                near.launcher.fenced(started, rollback)
                near.checkpoints.quarantine(tags, incident=incident, rollback=rollback)
                self._observer.forget(tags)
            case PointLatest(tag, global_step, incident, rollback):
                near.launcher.fenced(started, rollback)
                near.checkpoints.point_latest(tag, global_step, incident=incident, rollback=rollback)
            case CutTensorBoard(at, incident, rollback):
                near.launcher.fenced(started, rollback)
                if near.tensorboard is not None:
                    for sentence in near.tensorboard.cut(at, incident=incident, rollback=rollback).sentences():
                        log.warning("TensorBoard: %s", sentence)
            case WriteOverrides(overrides):
                near.launcher.fenced(started, overrides.rollback)
                near.overrides.write(overrides)
            case StartJob(incident, rollback):
                near.launcher.fenced(started, rollback)
                near.launcher.start(incident, rollback, started)
            case _:
                assert_never(action)
