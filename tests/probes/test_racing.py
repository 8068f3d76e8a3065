"""A race's probes on real folders, with a trainer that is a few lines of a journal: placed, looked at, refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.act.probes import ProbeJob
from sentinel.act.racing import Racing
from sentinel.adapters.journal import Journals
from sentinel.config import load_config
from sentinel.daemon.wiring import neighbours_of
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.incident import Adoption, Incident, Proof, Race, Rollback
from sentinel.plan.observation import JobsSeen, Life, WriterSeen
from sentinel.plan.probe import Probe
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample, Validation, encode
from tests.adapters.checkpoint_files import deepspeed
from tests.plan.test_recovery_plan import incident

NAME, UNTIL = "incident-1-p1", 150


def entrant(name: str = NAME) -> Rollback:
    at = Anchor(global_step=20, consumed_samples=320, consumed_tokens=10240)
    once = Once(id=name, seed=7)
    overrides = Overrides(incident="incident-1", rollback=name, anchor=at, standing=TrainingSettings(), once=once)
    found = {"target_tag": "global_step20", "target_step": 20, "overrides": overrides, "changes": ("seed 3 -> 7",)}
    return Rollback(id=name, rung="reseed", hypothesis="", decided_unix_s=1.0, lost_steps=40, **found)  # type: ignore[arg-type]


class Trainer:
    """Started, it writes its whole journal and a checkpoint, and lives until `lives` says otherwise."""

    lives = False

    def __init__(self, folder: Path, **shown: Any) -> None:
        self.folder, self.shown = folder, {"seed": 7, "loss": 2.5, "last": UNTIL} | shown

    def look(self, _: Sequence[RunStarted]) -> JobsSeen:
        return JobsSeen(writers=(WriterSeen(id="process 9"),) if self.lives else ())

    def start(self, *_: object, **__: object) -> None:
        at: dict[str, Any] = {"attempt": 2, "time_unix_s": 99.0}
        told = {"seed": self.shown["seed"], "resumed_from": 20, "first_sample_index": 320, "parent_attempt": 1}
        steps = range(21, self.shown["last"] + 1)
        lines = [
            RunStarted(**at, rollback=self.folder.name, full_seqlen=32, applied_once=(self.folder.name,), **told),
            *(Sample(**at, global_step=s, loss=self.shown["loss"] + 0.01 * (s % 5), seqlen=32) for s in steps),
            Validation(**at, global_step=self.shown["last"], loss=self.shown["loss"]),
            RunFinished(**at, global_step=self.shown["last"], reason="finished"),
        ]
        (self.folder / "attempts" / "0002.jsonl").write_text("".join(encode(line) + "\n" for line in lines))
        deepspeed(self.folder / "checkpoints", self.shown["last"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20, 40):
        deepspeed(tmp_path / "checkpoints", step)
    (tmp_path / "checkpoints" / "latest").write_text("global_step40")
    (tmp_path / "state" / "attempts").mkdir(parents=True)
    samples = [
        Sample(attempt=1, global_step=s, time_unix_s=1.0, loss=3.0 + 0.01 * (s % 5), seqlen=32) for s in range(1, 47)
    ]
    lines = [RunStarted(attempt=1, time_unix_s=1.0, full_seqlen=32), *samples]
    (tmp_path / "state" / "attempts" / "0001.jsonl").write_text("".join(encode(line) + "\n" for line in lines))
    text = '[run]\nname = "small"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n[launcher]\ncommand = ["false"]\n'
    (tmp_path / "run.toml").write_text(text)
    return tmp_path


def digests(folder: Path) -> dict[str, str]:
    files = [p for p in folder.rglob("*") if p.is_file() and ".sentinel-quarantine" not in p.parts]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def racing(run: Path, *, refused: str | None = None, **shown: Any) -> tuple[Racing, Incident]:
    def job(_: Probe, folder: Path) -> ProbeJob:
        if refused is not None:
            raise ConfigError(refused)
        launcher: Any = Trainer(folder, **shown)
        return ProbeJob(folder, launcher, Journals(folder))

    config = load_config(run / "run.toml")
    found = incident(races=[Race(entrants=(entrant(),), until_step=UNTIL)])
    made = Racing(near=neighbours_of(config), jobs=lambda: job, thresholds=Thresholds())
    return made, found


def started(found: Incident) -> Incident:
    return replace(found, races=[replace(found.races[0], started=frozenset({NAME}))])


def test_a_probe_goes_on_with_the_runs_line_of_descent_and_leaves_its_folders_alone(run: Path) -> None:
    made, found = racing(run)
    before = digests(run)
    (waiting,) = made.standings(found, 100.0)
    assert waiting.life is None
    made.start(NAME)
    (shown,) = made.standings(started(found), 100.0)
    saved = Adoption(probe=NAME, tag=f"global_step{UNTIL}", global_step=UNTIL)
    assert (shown.life, shown.last_step, shown.ill, shown.proof, shown.saved) == (
        Life.GONE, UNTIL, None, Proof.CONFIRMED, saved,
    )  # fmt: skip
    assert (shown.validation, shown.loss) == (2.5, pytest.approx(2.52))
    assert digests(run) == before


@pytest.mark.parametrize(
    ("told", "field", "value"),
    [
        ({"seed": 3}, "proof", Proof.CONTRADICTED),  # it was to be 7
        ({"last": 60}, "last_step", 60),
        ({"last": 60}, "loss", None),  # 11 steps past the onset at 49
        ({"loss": 9.0}, "ill", "diverged"),
        ({"last": UNTIL + 60}, "validation", None),  # its only one came after the step at which all are compared
    ],
)
def test_what_a_probe_has_shown_is_told_as_it_is(run: Path, told: dict[str, Any], field: str, value: Any) -> None:
    made, found = racing(run, **told)
    made.standings(found, 100.0)
    made.start(NAME)
    (shown,) = made.standings(started(found), 100.0)
    seen = getattr(shown, field)
    assert seen == value or (field == "ill" and str(seen).startswith(value))


def test_a_probe_that_was_started_and_has_reported_nothing_is_gone_and_not_begun_again(run: Path) -> None:
    made, found = racing(run)
    made.standings(found, 100.0)
    made.start(NAME)
    (folder,) = run.glob("checkpoints/.sentinel-quarantine/incident-1/race/*-p1")
    (folder / "attempts" / "0002.jsonl").unlink()
    fresh, _ = racing(run)
    assert fresh.standings(found, 100.0)[0].life is None  # killed before its start was seen done
    assert fresh.standings(started(found), 100.0)[0].life is Life.GONE


def test_a_probe_that_can_t_be_started_says_why_and_the_race_goes_on(run: Path) -> None:
    made, found = racing(run, refused="[launcher] command does not name the checkpoints folder")
    made.standings(found, 100.0)
    made.start(NAME)
    (shown,) = made.standings(found, 100.0)
    assert (shown.life, shown.refused) == (Life.GONE, "[launcher] command does not name the checkpoints folder")
