"""Undo of an incident with several rollbacks: the newest first, since each took away what the one before had made."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.act.observe import Observer
from sentinel.act.perform import Ledger
from sentinel.act.undo import quarantine_of, take_back
from sentinel.act.undo_preview import preview
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.vocabulary.overrides import Anchor, Overrides, TrainingSettings
from sentinel.vocabulary.sample import RunFinished, RunStarted, encode

AT = Anchor(global_step=10)


def rollback(number: int, *moved: str) -> Rollback:
    name = f"incident-1-r{number}"
    return Rollback(
        id=name,
        rung="reseed",
        hypothesis="…",
        target_tag="global_step10",
        target_step=10,
        overrides=Overrides(incident="incident-1", rollback=name, anchor=AT, standing=TrainingSettings()),
        changes=(),
        decided_unix_s=1.0,
        lost_steps=20,
        begun=True,
        moved_tags=moved,
    )


def named(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.name.startswith(("global_step", "overrides"))}


def moved(lines: list[str], there: set[Path]) -> set[Path]:
    """The paths after the moves that the lines say, in their order; each moves what is there to where nothing is."""
    for line in (line for line in lines if " -> " in line):
        source, destination = (Path(text) for text in line.split(" -> "))
        assert destination not in there
        there = there - {source} | {destination} if source in there else pytest.fail(line)
    return there


def test_rollbacks_of_one_incident_are_taken_back_the_newest_first(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        '[run]\nname = "a"\ncheckpoints = "c"\nstate_dir = "s"\n[launcher]\ncommand = ["true"]\n'
    )
    (tmp_path / "s" / "attempts").mkdir(parents=True)
    started, ended = (
        RunStarted(attempt=1, time_unix_s=1.0),
        RunFinished(attempt=1, time_unix_s=2.0, reason="finished", global_step=30),
    )
    (tmp_path / "s" / "attempts" / "0001.jsonl").write_text(f"{encode(started)}\n{encode(ended)}\n")
    near = neighbours_of(load_config(tmp_path / "a.toml"))

    def saved(step: int, by: str) -> None:
        tag = tmp_path / "c" / f"global_step{step}"
        tag.mkdir(parents=True)
        (tag / "by").write_text(by)
        (tmp_path / "c" / "latest").write_text(tag.name)

    def rolled_back(one: Rollback) -> None:
        near.checkpoints.quarantine(one.moved_tags, incident="incident-1", rollback=one.id)
        near.checkpoints.point_latest("global_step10", 10, incident="incident-1", rollback=one.id)
        near.overrides.write(one.overrides)

    for step in (10, 20, 30):
        saved(step, "the run")
    first, second = rollback(1, "global_step20", "global_step30"), rollback(2, "global_step20")
    rolled_back(first)
    saved(20, "the first restart")
    rolled_back(second)
    saved(20, "the second restart")
    incident = Incident(
        id="incident-1",
        opened_unix_s=1.0,
        attempt=1,
        onset_range=(15, 16),
        alarm_step=30,
        onset_tokens=None,
        best_mean=None,
        reason="…",
        baseline=Baseline(),
        rollbacks=[first, second],
    )
    assert quarantine_of(incident, near.checkpoints) == ("global_step20", "global_step30")
    ledger = Ledger(near.incident_log.append, lambda: 1.0, lambda _: None)
    observer = Observer(near, Thresholds(gone_after_s=0.001, quiet_s=0.001))
    observer.look(3.0)
    as_it_was = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    lines = list(preview([incident], near))
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == as_it_was
    would_be = moved(lines, named(tmp_path))
    take_back(incident, near, observer, ledger)
    assert would_be == named(tmp_path)
    assert f"{tmp_path}/c/latest says 'global_step30' again" in lines
    there = {path.parent.name: path.read_text() for path in (tmp_path / "c").glob("global_step*/by")}
    assert there == {f"global_step{step}": "the run" for step in (10, 20, 30)}
    assert (tmp_path / "c" / "latest").read_text() == "global_step30"
    assert near.overrides.read() is None
    kept = {path.read_text() for path in (tmp_path / "c" / ".sentinel-quarantine").rglob("by")}
    assert kept == {"the first restart", "the second restart"}
