"""What is installed is enough: the hooks' base install, and the daemon without torch."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Of an environment that no other test has installed anything in."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def pip(python: Path, what: str) -> None:
    constraints = ROOT / "constraints.txt"
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", constraints, what], check=True, timeout=400)


def packages(python: Path) -> set[str]:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True, check=True
    )
    return {line.partition("==")[0].lower() for line in listed.stdout.splitlines()} - {"pip", "setuptools", "wheel"}


def test_the_base_install_is_prometheus_client_and_ours(python: Path) -> None:
    pip(python, str(ROOT))
    assert {name.replace("_", "-") for name in packages(python)} == {"prometheus-client", "training-sentinel"}
    code = "import sentinel.vocabulary.sample; from trainer_hooks import attach"
    ran = subprocess.run([python, "-c", code], cwd=python.parent, capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in ran.stderr, ran.stderr  # the training container's own, and all that is missing


def test_the_daemon_installs_and_starts_without_torch(python: Path) -> None:
    pip(python, f"{ROOT}[daemon]")
    assert not packages(python) & {"torch", "deepspeed", "tensorboard"}
    folder = python.parents[1]
    sentinel = python.with_name("sentinel")
    subprocess.run([sentinel, "init", "tr8", "--checkpoints", "saved"], cwd=folder, check=True, timeout=60)
    recipe = [sentinel, "init", "tr9", "--launcher", "ray", "--config-dir", "others"]
    subprocess.run(recipe, cwd=folder, check=True, timeout=60)
    assert (folder / "others" / "tr9-launcher" / "train.sh").exists()
    ran = subprocess.run(
        [sentinel, "status", "--json"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert '"verdict": "pending"' in ran.stdout, ran.stderr
    exported = [
        sentinel,
        "dashboards",
        "export",
        "-o",
        "boards",
    ]  # from inside the package: there is no checkout beside it
    subprocess.run(exported, cwd=folder, check=True, timeout=60)
    assert {path.name for path in (folder / "boards").glob("*.json")} >= {"fleet.json", "spike-triage.json"}
