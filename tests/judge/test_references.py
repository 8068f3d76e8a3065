"""What a run is compared with while it is watched: said, and nothing else follows from it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from sentinel.act.following import References
from sentinel.act.watch import Watch
from sentinel.adapters.incident_log import IncidentLog
from sentinel.cli.status import show
from sentinel.config import Config, load_config
from sentinel.config.run_files import Chosen
from sentinel.daemon.supervisor import Options, watch
from sentinel.daemon.wiring import assemble
from sentinel.judge.events import EventKind
from sentinel.judge.reference import Reference
from sentinel.judge.verdict import VerdictKind
from sentinel.plan.incident.events import fold
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Sample, encode
from tests.sources.reading import megatron

STEPS = 3000


def loss(step: int, scale: float = 1.0) -> float:
    return scale * 10 * step**-0.2 * (1 + 0.01 * float(np.random.default_rng(step).standard_normal()))


def journal(folder: Path, scale: float, steps: int = STEPS, jump_at: int | None = None) -> None:
    (folder / "attempts").mkdir(parents=True)
    lines = (
        encode(
            Sample(
                attempt=1,
                global_step=s,
                time_unix_s=float(s),
                loss=loss(s, scale * (1.15 if jump_at is not None and s >= jump_at else 1.0)),
            )
        )
        for s in range(1, steps + 1)
    )
    (folder / "attempts" / "0001.jsonl").write_text("\n".join(lines) + "\n")


def configured(folder: Path, *lines: str, name: str = "a") -> Config:
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    text = "\n".join([f'[run]\nname = "{name}"\ncheckpoints = "checkpoints"\nstate_dir = "state"', *lines])
    (folder / f"{name}.toml").write_text(text + "\n")
    return load_config(folder / f"{name}.toml")


@pytest.fixture(params=["a configuration", "a log", "a state folder"])
def sibling(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """How the reference is named, from the run's own folder."""
    folder = tmp_path / "sibling"
    if request.param == "a log":
        folder.mkdir()
        (folder / "log.txt").write_text("\n".join(megatron(s, loss(s)) for s in range(1, STEPS + 1)) + "\n")
        return "../sibling/log.txt"
    journal(folder / "state", 1.0)
    configured(folder, name="b")
    return "../sibling/b.toml" if request.param == "a configuration" else "../sibling/state"


def test_a_run_that_is_behind_its_sibling_is_said_and_not_rolled_back(
    sibling: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    journal(tmp_path / "run" / "state", 1.4)
    config = configured(
        tmp_path / "run", f'reference = ["{sibling}"]', '[launcher]\ncommand = ["true"]\n[policy]\nmode = "act"'
    )
    with caplog.at_level(logging.INFO):
        chosen = Chosen(runs=(str(tmp_path / "run" / "a.toml"),), everything=False, config_dir=tmp_path)
        watch(chosen, Options(once=True), fleet_dir=tmp_path)
    (said,) = [r.getMessage() for r in caplog.records if "slower than it should be" in r.getMessage()]
    assert Path(sibling).name in said
    events = IncidentLog(tmp_path / "run" / "state" / "incidents.jsonl").read()
    assert not fold(events)  # that its job is gone is told there; the plateau is not
    assert "plateau" not in str(events)
    capsys.readouterr()
    show(config, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    (event,) = answer["events"]
    assert (event["kind"], event["end_step"]) == ("plateau", None)
    assert set(event) == {"kind", "onset_step", "end_step", "reason"}
    assert answer["verdict"] != "diverged"


def test_it_is_said_once_and_a_run_that_keeps_up_is_not_spoken_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal(tmp_path / "sibling", 1.0)
    for name, scale, times in (("behind", 1.4, 1), ("level", 1.05, 0)):
        caplog.clear()
        journal(tmp_path / name / "state", scale)
        config = configured(tmp_path / name, 'reference = ["../sibling"]')
        parts = assemble(config, config.policy, say=lambda _: None)
        watching = Watch(parts.near, parts.observer, parts.perform, config.policy, parts.ledger)
        with caplog.at_level(logging.INFO):
            for now in range(3):
                watching.tick(STEPS + now)
        assert sum("slower than it should be" in r.getMessage() for r in caplog.records) == times


def test_a_reference_is_read_again_after_an_hour_and_not_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read: list[Path] = []

    def reads(path: Path) -> Reference:
        read.append(path)
        if path.name == "gone" and len(read) > 2:
            raise ConfigError("its disk is away")
        return Reference(f"{path.name}{len(read)}", [(1, 2.0), (10, 1.0)])

    references = References((Path("here"), Path("gone")), reads)
    assert [r.name for r in references.at(0.0)] == ["here1", "gone2"]
    assert [r.name for r in references.at(3600.0)] == ["here1", "gone2"]
    assert [r.name for r in references.at(3601.0)] == ["here3", "gone2"]  # what can't be read stays as it was
    assert len(read) == 4
    assert "the reference gone can't be read: its disk is away" in caplog.text
    assert References().at(0.0) == ()


def test_a_step_that_was_planned_may_raise_the_loss(tmp_path: Path) -> None:
    kinds = {}
    for name, planned in (("told", "planned_steps = [2000]"), ("untold", "")):
        journal(tmp_path / name / "state", 1.0, jump_at=2000)
        config = configured(tmp_path / name, planned)
        look = assemble(config, config.policy, say=lambda _: None).observer.look(STEPS)
        alarm = [e for e in look.series.events if e.kind is EventKind.DIVERGENCE]
        kinds[name] = (look.verdict.kind is VerdictKind.DIVERGED, len(alarm))
    assert kinds == {"told": (False, 0), "untold": (True, 1)}
