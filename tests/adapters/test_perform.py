"""The last look before anything moves: the plan was made a moment ago."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.act.observe import Observer
from sentinel.act.perform import Performer
from sentinel.adapters.local import LocalJobs
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.restart.actions import (
    Action,
    BranchWandb,
    CutTensorBoard,
    PointLatest,
    QuarantineCheckpoints,
    StartJob,
    WriteOverrides,
)
from sentinel.vocabulary.errors import JobStillAlive
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


@pytest.mark.parametrize("action", MOVES, ids=lambda a: type(a).__name__)
def test_nothing_moves_while_another_than_the_rollbacks_own_job_lives(tmp_path: Path, action: Action) -> None:
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\ntensorboard = "tb"\n[launcher]\ncommand = ["true"]\n'
        '[wandb]\nafter_rollback = "copy"\nfolder = "wandb"\n'
    )
    for name in ("c/global_step10", "c/global_step20", "s", "tb"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "c" / "latest").write_text("global_step20")
    near = neighbours_of(load_config(tmp_path / "a.toml"))
    jobs = LocalJobs(tmp_path / "s")
    jobs.start(["sleep", "600"], cwd=tmp_path, extra_env={}, log_path=tmp_path / "other.log")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    try:
        with pytest.raises(JobStillAlive):
            Performer(near, Observer(near, Thresholds()))(action)
    finally:
        jobs.stop(grace_s=1)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert (tmp_path / "c" / "latest").read_text() == "global_step20"
