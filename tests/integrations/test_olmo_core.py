"""OLMo-core's Trainer with the callback, in the environment of `make olmo_core`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.journal import Journals
from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import CheckpointSaved, RunFinished, RunStarted, Sample
from tests.support.log_lines import lines_of
from tests.support.rescued_runs import CONFIGURATION, watched

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-olmo_core" / "bin" / "python"
PROGRAM = str(ROOT / "tests" / "integrations" / "olmo_core_training.py")

SUM_OF_ROOTS = """
import json, sys, torch
from olmo_core.distributed.checkpoint import RemoteFileSystemReader
from torch.distributed.checkpoint import load
reader = RemoteFileSystemReader(sys.argv[1])
parts = reader.read_metadata().state_dict_metadata
held = {name: torch.empty(part.size) for name, part in parts.items() if name.endswith(".exp_avg_sq")}
load(held, storage_reader=reader)
print(json.dumps([sum(v.double().sqrt().sum().item() for v in held.values()), len(held)]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    if not PYTHON.exists():
        pytest.skip("OLMo-core is not installed: make olmo_core")
    for name, value in {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "state").mkdir()
    yield tmp_path
    LocalJobs(tmp_path / "state").stop(grace_s=20)


@pytest.mark.timeout(600)
def test_a_diverged_training_is_rolled_back_and_restarted_with_a_lower_lr(folder: Path) -> None:
    without_seed = CONFIGURATION.replace("reseed = true\n", "")  # OLMo-core's data order is not the callback's
    command = [str(PYTHON), PROGRAM, str(folder)]
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
    assert records[-1].reason == "finished"
    assert [r for r in records if isinstance(r, Sample)][-1].loss < 2.6


@pytest.mark.timeout(600)
def test_two_ranks_that_accumulate_under_fsdp_read_what_the_checkpoint_holds(folder: Path) -> None:
    torchrun = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", PROGRAM]
    options = [str(folder), "--steps", "10", "--lr", "0.002", "--accumulate", "2"]
    subprocess.run([*torchrun, *options], check=True, capture_output=True, timeout=400)
    held = subprocess.run(
        [PYTHON, "-c", SUM_OF_ROOTS, folder / "checkpoints" / "step10" / "model_and_optim"],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    variance, parameters = json.loads(held.stdout.splitlines()[-1])
    records = list(Journals(folder / "state").poll())
    samples = [record for record in records if isinstance(record, Sample)]
    assert [sample.global_step for sample in samples] == list(range(1, 11))
    assert parameters > 20
    assert samples[-1].adam_variance_l1 == pytest.approx(variance, rel=1e-7)
    assert samples[-1].consumed_samples == 10 * 8
    assert 5 < samples[0].loss < 6
    saves = {record.tag: record.global_step for record in records if isinstance(record, CheckpointSaved)}
    assert saves == {"step0": 0, "step10": 10}
    assert next(r.world_size for r in records if isinstance(r, RunStarted)) == 2
