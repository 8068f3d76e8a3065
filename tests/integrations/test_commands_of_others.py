"""Commands of other projects, from the registry's real packages, rescued without a line of Python of ours in them.

Each has an environment of its own: `make trl`, `make llamafactory`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.adapters.local import LocalJobs
from sentinel.vocabulary.numbers import dump_json
from tests.support.rescued_runs import CONFIGURATION, assert_rescued, watched

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "output_dir": "checkpoints",
    "max_steps": 480,
    "per_device_train_batch_size": 8,
    "learning_rate": 0.05,  # with an eighth of it the model trains
    "warmup_steps": 60,
    "logging_steps": 1,
    "save_steps": 10,
    "use_cpu": "true",
    "report_to": "none",
    "disable_tqdm": "true",
}
TRL = {"model_name_or_path": "model", "dataset_name": "data", "max_length": 33, "bf16": "false", "dtype": "float32"}
LLAMAFACTORY = {
    "stage": "pt",
    "do_train": "true",
    "finetuning_type": "full",
    "model_name_or_path": "model",
    "dataset_dir": "factory",
    "dataset": "letters",
    "template": "default",
    "cutoff_len": 33,
    "disable_gradient_checkpointing": "true",
}
COMMANDS = {
    "trl": ["trl", "sft", "--config", "trl.yaml"],
    "llamafactory": ["llamafactory-cli", "train", "llamafactory.yaml"],
}


@pytest.fixture(params=COMMANDS)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    python = ROOT / f".venv-{request.param}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{request.param} is not installed: make {request.param}")
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    made = [python, ROOT / "tests" / "integrations" / "tiny_model.py", tmp_path]
    subprocess.run(made, check=True, capture_output=True, timeout=300)
    for name, settings in {"trl": TRL, "llamafactory": LLAMAFACTORY}.items():
        lines = (f"{key}: {value}\n" for key, value in (SETTINGS | settings).items())
        (tmp_path / f"{name}.yaml").write_text("".join(lines))
    (tmp_path / "state").mkdir()
    ours = [str(python), "-m", "trainer_hooks.run", "--run", "llama", "--state-dir", "state", "--"]
    (tmp_path / "llama.toml").write_text(CONFIGURATION.format(command=dump_json([*ours, *COMMANDS[request.param]])))
    yield tmp_path
    LocalJobs(tmp_path / "state").stop(grace_s=20)


@pytest.mark.timeout(600)
def test_a_command_of_others_is_watched_rolled_back_and_restarted_from_its_newest_checkpoint(run: Path) -> None:
    """Neither is told to resume: `trl sft` does not by itself, `llamafactory-cli train` looks in its output folder."""
    assert_rescued(run, watched(run))
    assert sorted(path.name for path in (run / "state" / "attempts").iterdir()) == ["0001.jsonl", "0002.jsonl"]
