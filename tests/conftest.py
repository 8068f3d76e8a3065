"""What tests of several kinds begin from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sentinel.demo.configuration import trainer_command, write_configuration
from tests.hooks.trainer import environment


@pytest.fixture(scope="session")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that went all the way to its end, ill, with nobody watching. To be copied, not changed."""
    folder = tmp_path_factory.mktemp("diverged")
    write_configuration(folder, seed=0)
    (folder / "state").mkdir()
    subprocess.run(trainer_command(folder, 0), cwd=folder, env=environment(), check=True, timeout=200)
    return folder
