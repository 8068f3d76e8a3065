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
_NOT_REACHED = ("NewConnectionError", "Could not find a version", "Temporary failure", "Connection refused")


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


_PATIENT = {"RAY_raylet_start_wait_time_s": "240", "RAY_agent_register_timeout_ms": "240000"}
"""Deadlines of Ray's own, for a machine that does much else."""


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

    def up(self) -> None:
        """All ports are this network's, which is this cluster's alone. The agents' are named, since Ray waits for those
        that it is to choose, and gives up on a busy machine."""
        words = ["ray", "start", "--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", "--num-cpus=4"]
        words += ["--num-gpus=0", "--object-store-memory=80000000", "--disable-usage-stats"]
        agents = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
        words += [f"--{agent}-port={port}" for port, agent in enumerate(agents, 52365)]
        self.run(*words, "--include-log-monitor=false", f"--temp-dir={self.folder}", cwd=self.folder, timeout_s=300)

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

    def submit(self, name: str, *words: str) -> None:
        """As a person does it."""
        line = ["ray", "job", "submit", "--address", ADDRESS, "--no-wait", "--submission-id", name]
        self.run(*line, "--", *words)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    programs = environment()
    with loopback(folder) as inside:
        cluster = RayCluster(inside, programs, folder)
        cluster.up()
        yield cluster
