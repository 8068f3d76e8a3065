"""One Slurm for all of these tests; each has its own jobs, and leaves none behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing, until


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    if (why := missing()) is not None:
        pytest.skip(f"no Slurm here: {why}")
    # Not in pytest's own folder, which others can't enter; a step that is just dying may still write into it.
    with tempfile.TemporaryDirectory(prefix="sentinel-slurm-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()


@pytest.fixture
def cluster(slurm: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm
    slurm.start_controller() if "UP" not in slurm.slurm("scontrol", "ping", expect=None) else None
    left = sorted(set(slurm.jobs("%A")))  # also another account's, of a test that failed
    slurm.slurm("scancel", "--quiet", *left, expect=None) if left else None
    until(lambda: not slurm.jobs())
    until(slurm.is_idle)
