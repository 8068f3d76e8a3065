"""The hooks in a training container that may not change: torch, DeepSpeed, prometheus_client, and then our wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sentinel.vocabulary.sample import RunFinished, Sample
from tests.hooks.trainer import losses, records, starts

ROOT = Path(__file__).parents[2]
OURS = "training-sentinel"
OLDEST = "prometheus-client==0.19.0"
"""The oldest that our wheel asks for: a container that has it keeps it."""

OF_THE_EXTRAS = (
    *("typer", "rich", "scipy", "matplotlib", "tree_sitter", "google_crc32c", "msgspec", "pyarrow"),
    *("tensorboard", "transformers", "accelerate", "hypothesis", "pytest"),
)

_IMPORTS = """
import importlib, importlib.util, pkgutil
import trainer_hooks
for module in pkgutil.walk_packages(trainer_hooks.__path__, "trainer_hooks."):
    of_a_trainer = any(f".{{name}}" in module.name for name in ("huggingface", "lightning", "olmo_core"))
    if not of_a_trainer and not module.name.endswith(("__main__", "triton_kernel")):
        importlib.import_module(module.name)
print([name for name in {names!r} if importlib.util.find_spec(name)])
print(trainer_hooks.__file__)
"""

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that knows nothing of this environment."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode == 0, f"{ran.stdout[-1500:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


def frozen(python: Path) -> set[str]:
    """name==version of everything that is installed; names as pip writes them in one place, underscores as hyphens."""
    return set(run(python, "-m", "pip", "list", "--format", "freeze", cwd=python.parent).replace("_", "-").split())


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its python."""
    folder = tmp_path_factory.mktemp("container")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = [line for line in (ROOT / "constraints.txt").read_text().split() if "prometheus" not in line]
    (folder / "constraints.txt").write_text("\n".join(constraints))
    for packages in (["torch"], ["deepspeed", OLDEST]):  # torch first, so that nothing pulls its CUDA build
        run(python, "-m", "pip", "install", "-q", "-c", folder / "constraints.txt", *packages, cwd=folder)
    return python


@pytest.fixture(scope="module")
def before_and_after(container: Path) -> tuple[set[str], set[str]]:
    """What is installed before our wheel, and with it."""
    folder = container.parents[1]
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "wheels", ROOT, cwd=folder)
    before = frozen(container)
    (wheel,) = (folder / "wheels").glob("*.whl")
    run(container, "-m", "pip", "install", "-q", wheel, cwd=folder)
    return before, frozen(container)


def test_our_wheel_changes_no_version_that_was_there(before_and_after: tuple[set[str], set[str]]) -> None:
    before, after = before_and_after
    assert OLDEST in before
    assert before <= after
    assert [line.partition("==")[0] for line in after - before] == [OURS]


def test_every_module_of_the_hooks_is_imported_without_the_extras(
    container: Path, before_and_after: tuple[set[str], set[str]]
) -> None:
    extras, where = run(container, "-c", _IMPORTS.format(names=OF_THE_EXTRAS), cwd=container.parent).splitlines()[-2:]
    assert extras == "[]"
    assert Path(where).is_relative_to(container.parents[1])


def test_a_training_there_leaves_its_journal(
    container: Path, before_and_after: tuple[set[str], set[str]], tmp_path: Path
) -> None:
    run(container, ROOT / "examples/deepspeed_three_lines.py", "--output", "out", "--steps", "5", cwd=tmp_path)
    told = records(tmp_path / "out")
    assert list(losses(tmp_path / "out")) == [1, 2, 3, 4, 5]
    assert all(s.adam_variance_l1 and s.adam_variance_max for s in told if isinstance(s, Sample))
    assert [r.reason for r in told if isinstance(r, RunFinished)] == ["finished"]
    assert starts(tmp_path / "out")[0].hook_version is not None  # the wheel's, which no checkout has
