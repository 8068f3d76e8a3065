"""A real Prometheus with our rules, a real watch, the trainer's own exporter, and the steps of a run that diverged."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.recorded.curves import read_curve
from sentinel.vocabulary.sample import Sample, encode
from tests.adapters.pagers import until
from tests.adapters.servers import prometheus, running
from trainer_hooks.export.exporter import Exporter, ExporterSettings, announce
from trainer_hooks.export.step_collector import StepCollector

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
CURVE = ROOT / "benchmarks" / "recorded" / "curves" / "attention_growth_c.csv.xz"
"""Of a small GPT that really diverged, at step 1000: its attention was scaled up from there on."""

WELL_UNTIL, ILL_AT = 900, 1500
RUN = """\
[run]
name = "small"
checkpoints = "checkpoints"
state_dir = "state"
[watch]
poll_interval_s = 0.2
[metrics]
announce = "127.0.0.1"
"""
READINGS = ("grad_norm", "lr", "adam_variance_l1", "adam_variance_max", "update_norm")


def samples() -> list[Sample]:
    curve = read_curve(CURVE)
    began = time.time() - len(curve["step"])
    return [
        Sample(
            attempt=1,
            global_step=int(curve["step"][i] or 0),
            time_unix_s=began + i,
            loss=float(curve["loss"][i] or "nan"),
            seqlen=int(curve["seqlen"][i] or 0),
            **{name: curve[name][i] for name in READINGS},
        )
        for i in range(len(curve["step"]))
    ]


class Trainer:
    """The journal and the exporter of one attempt, and a process that stands for its job."""

    def __init__(self, state: Path) -> None:
        self._journal = state / "attempts" / "0001.jsonl"
        self._journal.parent.mkdir(parents=True)
        self._collector = StepCollector("small", 1)
        self._exporter = Exporter(self._collector, ExporterSettings(announce="127.0.0.1"))
        announce(self._exporter, state / "scrape.json", {"run": "small", "attempt": "1"})

    def steps(self, made: list[Sample]) -> None:
        with self._journal.open("a", encoding="utf-8") as journal:
            journal.writelines(encode(sample) + "\n" for sample in made)
        for sample in made:
            self._collector.push(sample)

    def close(self) -> None:
        self._exporter.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "small.toml").write_text(RUN)
    return tmp_path


def test_a_divergence_goes_from_the_trainers_steps_to_a_firing_alert(folder: Path) -> None:
    made, trainer = samples(), Trainer(folder / "state")
    watch = (sys.executable, "-m", "sentinel", "watch", "--run", folder / "small.toml")
    with ExitStack() as stack:
        stack.callback(trainer.close)
        started = {"folder": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        stack.enter_context(running("sleep", "300", name="job", SENTINEL_STATE_DIR=str(folder / "state"), **started))
        asked = stack.enter_context(prometheus(folder, state=folder / "state"))
        trainer.steps(made[:WELL_UNTIL])
        watching = stack.enter_context(running(*watch, name="watch", **started))

        until(lambda: asked.query("max(sentinel_judged_global_step)") == {(): "900"})
        until(lambda: asked.query("max by (verdict) (sentinel_verdict == 1)") == {("healthy",): "1"})
        latest = {("small",): str(made[WELL_UNTIL - 1].loss)}  # the two targets are found and scraped one by one
        until(lambda: asked.query("max by (run) (sentinel_loss)") == latest)
        assert "SentinelDiverged" not in asked.alerts()

        trainer.steps(made[WELL_UNTIL:ILL_AT])
        until(lambda: "SentinelDiverged" in asked.alerts())
        alert = asked.alerts()["SentinelDiverged"]
        assert alert["labels"]["severity"] == "critical"
        assert alert["annotations"]["summary"] == "small has diverged"
        ((early,), (late,)) = (
            asked.query(f'max(sentinel_onset_step{{edge="{e}"}})').values() for e in ("early", "late")
        )
        assert 950 <= int(early) <= int(late) <= 1100
        until(lambda: asked.query('max(sentinel_incidents{status="open"})') == {(): "1"})

        watching.kill()  # what it announced stays
        until(lambda: "SentinelSilent" in asked.alerts("pending"))
