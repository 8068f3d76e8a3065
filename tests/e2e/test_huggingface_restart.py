"""A Llama on Hugging Face's Trainer, restarted with a lower LR and clipping that Trainer takes from the checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.local import LocalJobs
from sentinel.plan.incident.events import fold
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.incident.log_lines import event_of
from tests.adapters.pagers import free_port
from tests.support.log_lines import lines_of

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "hooks" / "llama.py"
LOWER = """\
[policy]
mode = "act"
confirm_within_s = 200

[[policy.ladder]]
name = "lower lr"
hypothesis = "the learning rate is too high for these weights"
options = ["--learning_rate=1e-5", "--max_grad_norm=0.3"]
"""
TO = ("rollback", "--to", "checkpoint-4", "--rung", "lower lr")


class Llama:
    """One run, its program and its configuration."""

    def __init__(self, folder: Path, *words: str, source: str = "") -> None:
        self.folder = folder
        self.environment = dict(
            os.environ,
            OMP_NUM_THREADS="1",
            MASTER_PORT=str(free_port()),
            PYTHONPATH=os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        )
        self._program = [sys.executable, str(PROGRAM), str(folder)]
        command = ", ".join(f'"{word}"' for word in [*self._program, *words])
        (folder / "llama.toml").write_text(
            '[run]\nname = "llama"\ncheckpoints = "checkpoints"\nstate_dir = "state"\n'
            f"{source}[watch]\npoll_interval_s = 0.2\n[launcher]\ncommand = [{command}]\n{LOWER}"
        )

    def train(self, *words: str) -> None:
        """One life, to step `--stop-after`; its log is the launcher's."""
        (self.folder / "state").mkdir(exist_ok=True)
        with (self.folder / "state" / "job.log").open("ab") as log:
            line = [*self._program, *words]
            ran = subprocess.run(line, env=self.environment, stdout=log, stderr=log, timeout=200, check=False)
        assert ran.returncode == 0, (self.folder / "state" / "job.log").read_text()[-3000:]

    def sentinel(self, *words: str, expect: int) -> str:
        line = [sys.executable, "-m", "sentinel", *words, "--run", str(self.folder / "llama.toml")]
        ran = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == expect, f"{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr

    @property
    def events(self) -> list[dict[str, Any]]:
        return [dict(event) for event in lines_of(self.folder / "state" / "incidents.jsonl")]

    def restarted(self) -> Rollback:
        """Rolled back by a person and watched until it is settled; the rollback that comes of it."""
        self.sentinel(*TO, "--yes", expect=0)
        self.sentinel("watch", expect=4)
        incident, own = fold(map(event_of, self.events))
        assert (incident.status, own.status, own.ignored) == ("stopped", "stopped", "incident-1-r1")
        assert "--learning_rate (lr) should be 1e-05" in own.reason
        for told in (incident.note, self.sentinel("incidents", expect=0), self.sentinel("incident", own.id, expect=0)):
            assert told is not None
            assert "did not take effect" in told
        self.sentinel("chronicle", "--output", str(self.folder / "chronicle"), expect=0)
        chronicle = (self.folder / "chronicle" / "chronicle.md").read_text()
        assert "did not take effect: --learning_rate (lr)" in chronicle
        assert "did not help" not in chronicle
        return incident.rollbacks[0]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    LocalJobs(tmp_path / "state").stop(grace_s=20)


def answers(llama: Llama) -> dict[str, str]:
    (event,) = (e for e in llama.events if e["event"] == "not_proved")
    return {check["what"]: check["answer"] for check in event["checks"]}


@pytest.mark.timeout(600)
def test_a_lower_lr_that_trainer_takes_from_the_checkpoint_is_refused_or_else_contradicted(run: Path) -> None:
    llama = Llama(run, "--applies", "free")
    llama.train("--stop-after", "6")
    refused = llama.sentinel(*TO, "--dry-run", expect=1)
    said = "Hugging Face's Trainer (StabilityCallback) does not apply --learning_rate=1e-5, --max_grad_norm=0.3"
    assert said in refused
    assert said in llama.sentinel("doctor", expect=1)
    assert not (run / "state" / "overrides.json").exists()

    llama.train("--stop-after", "8", "--applies", "free")  # a script that hands the options on, and says so
    rollback = llama.restarted()
    assert set(rollback.doubts) == {"--learning_rate (lr)", "--max_grad_norm (clip_grad)"}
    assert answers(llama)["--max_grad_norm (clip_grad)"] == "contradicted"


@pytest.mark.timeout(600)
def test_of_a_trainer_that_only_logs_the_same_is_read_from_its_log(run: Path) -> None:
    llama = Llama(run, "--bare", source='[source]\nkind = "log"\n')
    llama.train("--stop-after", "8", "--bare")
    rollback = llama.restarted()
    assert rollback.doubts == ("--learning_rate (lr)",)
    assert answers(llama)["--max_grad_norm (clip_grad)"] == "not verified"  # the log has no word of it
