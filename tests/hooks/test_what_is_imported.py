"""The hooks start with what a training container has; the daemon starts without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT = """
import sys

class Away:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {away!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Away())
sys.argv = {argv!r}
{program}
"""

DAEMONS = ("typer", "rich", "scipy", "matplotlib", "pandas")
TRAINERS = ("torch", "deepspeed", "tensorboard")


def without(away: tuple[str, ...], program: str, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = _WITHOUT.format(away=away, argv=["sentinel", *argv], program=program)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_hooks_need_nothing_of_the_daemons(tmp_path: Path) -> None:
    away = (*DAEMONS, "tensorboard", "transformers", "accelerate")
    ran = without(away, "import trainer_hooks; print(trainer_hooks.attach)", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_sequence_warmup_and_random_ltd_need_no_numpy(tmp_path: Path) -> None:
    program = "import trainer_hooks.warmup, trainer_hooks.random_ltd, trainer_hooks.restart"
    ran = without((*DAEMONS, "deepspeed", "tensorboard", "transformers", "numpy"), program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_vocabulary_needs_the_standard_library_alone(tmp_path: Path) -> None:
    modules = ("errors", "numbers", "sample", "loss_ratio", "pacing", "overrides", "metrics")
    imports = "; ".join(f"import sentinel.vocabulary.{name}" for name in modules)
    ran = without((*DAEMONS, *TRAINERS, "prometheus_client", "numpy", "psutil"), imports, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("argv", [("--help",), ("watch", "--once"), ("status",), ("incidents",), ("correlate",)])
def test_the_daemon_starts_without_the_trainers_libraries(tmp_path: Path, argv: tuple[str, ...]) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.toml").write_text('[run]\nname = "a"\ncheckpoints = "c"\n')
    ran = without(TRAINERS, "from sentinel.cli import main; main()", *argv, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_without_its_own_libraries_the_command_says_what_to_install(tmp_path: Path) -> None:
    ran = without(DAEMONS, "from sentinel.cli import main; main()", "--help", cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == "sentinel: typer is not installed; pip install 'training-sentinel[daemon]'\n"


def test_the_demo_without_a_trainer_says_what_to_install(tmp_path: Path) -> None:
    ran = without(TRAINERS, "from sentinel.cli import main; main()", "demo", "--output", "d", cwd=tmp_path)
    assert ran.returncode == 2
    assert "pip install 'training-sentinel[daemon,trainer]'" in ran.stderr
    assert not (tmp_path / "d").exists()


def test_data_is_analysed_without_torch(tmp_path: Path) -> None:
    away = (*DAEMONS, *TRAINERS, "prometheus_client", "transformers")
    asked = ("analyze", "--metric", "voc", "--seqlen", "64", "--output", "indexes", "--quiet")
    program = "from trainer_hooks.data.__main__ import main; sys.exit(main())"
    ran = without(away, program, *asked, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "indexes" / "voc" / "manifest.json").exists()
