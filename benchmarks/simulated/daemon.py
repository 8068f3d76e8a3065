"""The daemon that watches the simulated runs, as an operator would start it, and what is seen of it from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.simulated.runs import SimulatedRun

__all__ = ["Incidents", "configure", "free_port", "scrape", "started", "usage"]

_CONFIG = """\
[run]
name = "{name}"
checkpoints = "{folder}/checkpoints"
state_dir = "{folder}"
[source]
{source}
[launcher]
kind = "elsewhere"
[metrics]
port = {port}
"""

_EVERY_S = 0.1
"""How often the incident logs are looked at."""


def configure(folder: Path, runs: Sequence[SimulatedRun], port: int, prometheus: str | None) -> dict[str, Path]:
    """Writes each run's TOML; its state folders by name. With a Prometheus the samples come from there."""
    source = (
        'kind = "journal"' if prometheus is None else f'kind = "prometheus"\nurl = "{prometheus}"\nlookback_s = 600'
    )
    (folder / "runs").mkdir()
    found = {run.name: folder / "state" / run.name for run in runs}
    for name, state in found.items():
        state.mkdir(parents=True)
        if prometheus is None:
            for step in (5000, 10_000, 15_000, 20_000):
                saved = state / "checkpoints" / f"global_step{step}"
                saved.mkdir(parents=True)
                (saved / "mp_rank_00_model_states.pt").write_bytes(b"\0" * 64)
            (state / "checkpoints" / "latest").write_text("global_step20000")
        text = _CONFIG.format(name=name, folder=state, source=source, port=port)
        (folder / "runs" / f"{name}.toml").write_text(text)
    return found


@contextmanager
def started(command: Sequence[str], log: Path, *, ready: str | None = None) -> Iterator[psutil.Process]:
    """A process, which is ended when the context is; waited for until it has printed `ready`."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1") | {"no_proxy": "127.0.0.1"}
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | alone | {"PYTHONPATH": str(root)}
    with log.open("wb") as file:
        out = subprocess.PIPE if ready else file
        process = subprocess.Popen([*command], stdout=out, stderr=file, env=environment, cwd=log.parent, text=True)
    try:
        if ready is not None and process.stdout is not None and process.stdout.readline().strip() != ready:
            raise SystemExit(f"{command} did not begin: {log.read_text()[-2000:]}")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def usage(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds that it and its worker processes have used, and MB of memory that they have now (sum of RSS)."""
    cpu_s, rss_mb = 0.0, 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            times = one.cpu_times()
            cpu_s, rss_mb = cpu_s + times.user + times.system, rss_mb + one.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            continue
    return cpu_s, rss_mb


def free_port() -> int:
    """One of 127.0.0.1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def scrape(url: str) -> tuple[float, int, dict[str, list[float]]]:
    """Seconds that the answer took, its bytes, and the values of each metric."""
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - our own, on 127.0.0.1
        body = answer.read()
    took, values = time.monotonic() - began, {}
    for line in body.decode().splitlines():
        if line[0] != "#":
            values.setdefault(line.split("{")[0], []).append(float(line.rsplit(" ", 1)[1]))
    return took, len(body), values


class Incidents:
    """When each run's incident log had its first incident: looked at from outside, in a thread, ten times a second."""

    def __init__(self, states: Mapping[str, Path]) -> None:
        self.seen: dict[str, float] = {}
        self._logs = {name: state / "incidents.jsonl" for name, state in states.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            for name, log in self._logs.items():
                if name not in self.seen and log.exists() and b'"event": "opened"' in log.read_bytes():
                    self.seen[name] = time.time()


PYTHON: list[str] = [sys.executable, "-m"]


def plan(path: Path, runs: Sequence[SimulatedRun], **more: Any) -> str:
    """What the simulated trainers are told, as a file; its path."""
    described = [{"number": run.number, "diverges_at": run.diverges_at} for run in runs]
    path.write_text(json.dumps({"runs": described, **more}))
    return str(path)
