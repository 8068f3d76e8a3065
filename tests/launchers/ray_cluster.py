"""A real Ray cluster of one node on loopback, in an environment of its own."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.loopback import Loopback, loopback

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-ray"
ADDRESS = "http://127.0.0.1:8265"
_NOT_REACHED = ("NewConnectionError", "Temporary failure in name resolution", "ConnectTimeoutError")


def environment() -> Path:
    """The folder of its programs; made by the first that asks. Skips where the registry is not reached."""
    with (ROOT / ".venv-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (VENV / "made").exists():
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, timeout=120)
            install = [str(VENV / "bin" / "pip"), "install", "-q", "-c", str(ROOT / "constraints.txt"), "ray[default]"]
            ran = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
            if ran.returncode != 0 and any(word in ran.stderr for word in _NOT_REACHED):
                pytest.skip(f"ray is not there, and the package registry is not reached: {ran.stderr[-300:]}")
            assert ran.returncode == 0, ran.stderr[-3000:]
            (VENV / "made").touch()
    return VENV / "bin"


_PATIENT = {"RAY_raylet_start_wait_time_s": "90", "RAY_agent_register_timeout_ms": "90000"}
"""Deadlines of Ray's own, for a machine that does much else."""
_STARTS = 3


class RayCluster:
    """What the tests ask of it; `environment` is what its programs need in theirs."""

    def __init__(self, inside: Loopback, programs: Path, folder: Path) -> None:
        self.inside = inside
        self.folder = folder
        self.environment = {"PATH": f"{programs}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0", **_PATIENT}

    def run(self, *words: str, cwd: Path | None = None, expect: int | None = 0, timeout_s: float = 120) -> str:
        """One of its programs, inside; returns what it prints."""
        ran = subprocess.run(
            [*self.inside.prefix, *words],
            env={**os.environ, **self.environment},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert expect is None or ran.returncode == expect, f"{words}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def up(self, *, expect: int | None) -> bool:
        """Ports that are not named are chosen by Ray: all are this network's, which is this cluster's alone."""
        words = ["ray", "start", "--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=4"]
        words += ["--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats"]
        words += ["--include-log-monitor=false", f"--temp-dir={self.folder}"]
        return "Ray runtime started" in self.run(*words, cwd=self.folder, expect=expect, timeout_s=300)

    def listening(self) -> set[str]:
        """The addresses that something of this network listens on."""
        lines = self.run("ss", "-Hltn").splitlines()
        return {line.split()[3].rpartition(":")[0] for line in lines}

    def jobs(self) -> dict[str, str]:
        """Submission id -> state, as the recipe's own list shows them."""
        script = ROOT / "examples" / "launchers" / "ray" / "jobs.py"
        rows: list[dict[str, Any]] = [
            json.loads(line) for line in self.run("python3", str(script), ADDRESS).splitlines()
        ]
        return {row["name"]: row["state"] for row in rows}

    def forget_all(self) -> None:
        """Stops and deletes every job, until none is shown."""
        while jobs := self.jobs():
            for name, state in jobs.items():
                verb = "stop" if state in ("PENDING", "RUNNING") else "delete"
                self.run("ray", "job", verb, "--address", ADDRESS, name, expect=None)

    def submit(self, name: str, *words: str) -> None:
        """As a person does it."""
        line = ["ray", "job", "submit", "--address", ADDRESS, "--no-wait", "--submission-id", name]
        self.run(*line, "--", *words)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Ray gives up its start where its processes are slow to find one another, as on a busy machine: it is begun anew
    then, in another network."""
    programs = environment()
    for number in range(1, _STARTS + 1):
        base = folder / str(number)
        base.mkdir()
        with loopback(base) as inside:
            cluster = RayCluster(inside, programs, base)
            if cluster.up(expect=0 if number == _STARTS else None):
                yield cluster
                return
