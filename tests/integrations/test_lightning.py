"""Lightning's Trainer with the callback, in the environment of `make trl`, which has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunFinished, RunStarted, Sample
from tests.support.log_lines import lines_of
from tests.support.rescued_runs import CONFIGURATION, watched

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
PROGRAM = str(ROOT / "tests" / "integrations" / "lightning_training.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if not PYTHON.exists():
        pytest.skip("lightning is not installed: make trl")
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    made = [PYTHON, ROOT / "tests" / "integrations" / "tiny_model.py", tmp_path]
    subprocess.run(made, check=True, capture_output=True, timeout=300)
    (tmp_path / "state").mkdir()
    yield tmp_path
    LocalJobs(tmp_path / "state").stop(grace_s=20)


@pytest.mark.timeout(600)
def test_a_diverged_training_is_rolled_back_and_restarted_with_a_lower_lr(folder: Path) -> None:
    without_seed = CONFIGURATION.replace("reseed = true\n", "")  # Lightning's data order is not the callback's
    command = [str(PYTHON), PROGRAM, str(folder), "--own"]
    (folder / "llama.toml").write_text(without_seed.format(command=dump_json(command)))
    incident = watched(folder)
    events = lines_of(folder / "state" / "incidents.jsonl")
    (proved,) = (e for e in events if e["event"] in ("proved", "not_verified", "not_proved"))
    assert proved["event"] == "proved"
    assert {c["what"] for c in proved["checks"] if c["changed"]} >= {"lr_schedule", "lr of the first steps"}
    assert incident.status == "closed"
    records = list(Journals(folder / "state").poll())
    first, second = (record for record in records if isinstance(record, RunStarted))
    assert second.lr_schedule["peak"] == first.lr_schedule["peak"] / 8
    assert second.resumed_from is not None
    assert records[-1] == next(r for r in records if isinstance(r, RunFinished) and r.attempt == second.attempt)
    assert [r for r in records if isinstance(r, Sample)][-1].loss < 2.6


@pytest.mark.timeout(600)
def test_two_ranks_that_accumulate_read_what_the_checkpoint_holds(folder: Path) -> None:
    """Without a line of ours in the program: DDP, two micro-batches a step. Adam's state is that of the checkpoint."""
    ours = [str(PYTHON), "-m", "trainer_hooks.run", "--run", "llama", "--state-dir", str(folder / "state"), "--"]
    options = ["--steps", "10", "--lr", "0.005", "--devices", "2", "--accumulate", "2"]
    subprocess.run([*ours, PROGRAM, str(folder), *options], check=True, capture_output=True, timeout=400)
    script = (
        "import sys, json, torch; c = torch.load(sys.argv[1], weights_only=True);"
        "s = c['optimizer_states'][0]['state'].values();"
        "print(json.dumps([sum(x['exp_avg_sq'].double().sqrt().sum().item() for x in s), c['global_step']]))"
    )
    save = folder / "checkpoints" / "epoch=0-step=10.ckpt"
    held = subprocess.run([PYTHON, "-c", script, save], check=True, capture_output=True, text=True, timeout=100)
    variance, step = json.loads(held.stdout)
    records = list(Journals(folder / "state").poll())
    samples = [record for record in records if isinstance(record, Sample)]
    assert [sample.global_step for sample in samples] == list(range(1, step + 1))
    assert samples[-1].adam_variance_l1 == pytest.approx(variance, rel=1e-7)
    assert samples[-1].consumed_samples == 10 * 2 * 2 * 8
    assert 5 < samples[0].loss < 6
    assert next(r.world_size for r in records if isinstance(r, RunStarted)) == 2
