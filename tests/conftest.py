"""What tests of several kinds begin from."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sentinel.demo.configuration import trainer_command, write_configuration
from tests.hooks.trainer import environment

# How long an example takes says nothing of what it shows, on a machine that others use too. In CI the examples are the
# same each time, so that a change is judged by what it changes; everywhere else they are new ones.
settings.register_profile(
    "any speed",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="LEAVE_NOTHING_OUT" in os.environ,
)
settings.load_profile("any speed")


@pytest.fixture(scope="session")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that diverged and trained to its end unwatched. To be copied, not changed.

    One training for all workers: the first that asks trains, the others wait for it.
    """
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "diverged"
    with (folder.parent / "diverged.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "trained").exists():
            folder.mkdir()
            write_configuration(folder, seed=0)
            (folder / "state").mkdir()
            subprocess.run(trainer_command(folder, 0), cwd=folder, env=environment(), check=True, timeout=280)
            (folder / "trained").touch()
    return folder


_FIRST = ("slurm", "launchers", "e2e", "hooks")
"""Folders with the longest tests: begun first, so that no worker ends with one of them alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first; with several workers a file's tests stay together, since they share its fixtures. The
    programs that measure are of the second tier."""
    items.sort(key=lambda item: item.path.parent.name not in _FIRST)
    for item in items:
        if item.path.parent.name == "benchmarks" and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.full)


_LEFT_OUT: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Takes note of what is left out, and why."""
    if report.skipped and isinstance(report.longrepr, tuple):
        _LEFT_OUT.append(f"{report.nodeid}: {report.longrepr[2]}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where nothing may be left out (CI), a test whose program is not installed is a failure.

    What the machine itself can't do (an accelerator, a device file, ptrace) is left out there as well, and said.
    """
    missing = [line for line in _LEFT_OUT if "not installed" in line or "apt-get" in line]
    if os.environ.get("LEAVE_NOTHING_OUT") and missing and exitstatus == 0:
        print("\nleft out, and may not be:", *missing, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
