"""One action of each kind that moves something."""

from __future__ import annotations

from sentinel.plan.restart.actions import (
    Action,
    BranchWandb,
    CutTensorBoard,
    PointLatest,
    QuarantineCheckpoints,
    StartJob,
    WriteOverrides,
)
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings

WHERE = ("incident-1", "incident-1-r1")
AT = Anchor(global_step=10)
MOVES: list[Action] = [
    QuarantineCheckpoints(("global_step20",), *WHERE),
    PointLatest("global_step10", 10, *WHERE),
    CutTensorBoard(AT, *WHERE),
    BranchWandb("copy", 10, *WHERE),
    WriteOverrides(Overrides(incident=WHERE[0], rollback=WHERE[1], anchor=AT, standing=TrainingSettings())),
    StartJob(*WHERE),
]
