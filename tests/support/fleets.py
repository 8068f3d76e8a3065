"""Folders of many runs, and a watch of all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentinel.vocabulary.sample import RunFinished, Sample, encode
from tests.adapters.pagers import until
from tests.adapters.servers import running

PACE_S = 0.2
WRITER = """
import json, sys, time
path, until_step, ill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "a", buffering=1) as journal:
    for step in range(1, until_step + 1):
        loss = 3.0 + 0.03 * ((7 * step) % 11 - 5) / 5 if step < ill_at else 9.0
        sample = {"kind": "sample", "attempt": 1, "global_step": step, "time_unix_s": time.time(), "loss": loss}
        journal.write(json.dumps(sample) + "\\n")
        time.sleep(0.001)
time.sleep(300)
"""


class Folder:
    """Runs' configurations, what the runs write, and the daemons that watch them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "runs").mkdir()

    def run(self, name: str, *lines: str, launcher: str = "elsewhere", pace_s: float = PACE_S) -> Path:
        """Configures a run; its state folder."""
        text = (
            f'[run]\nname = "{name}"\ncheckpoints = "../c-{name}"\nstate_dir = "../s-{name}"\n'
            f'[launcher]\nkind = "{launcher}"\nslurm_timeout_s = 600\n[watch]\npoll_interval_s = {pace_s}\n'
        )
        (self.path / "runs" / f"{name}.toml").write_text(text + "\n".join(lines) + "\n")
        (self.path / f"c-{name}").mkdir(exist_ok=True)
        return self.state(name)

    def state(self, name: str) -> Path:
        return self.path / f"s-{name}"

    def journal(self, name: str) -> Path:
        path = self.state(name) / "attempts" / "0001.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def trained(self, name: str, steps: int = 300, *, finished: str | None = None) -> None:
        """A journal that is there already."""
        made = [
            Sample(attempt=1, global_step=s, time_unix_s=time.time(), loss=3.0 + 0.03 * ((7 * s) % 11 - 5) / 5)
            for s in range(1, steps + 1)
        ]
        self.journal(name).write_text("".join(encode(sample) + "\n" for sample in made))
        if finished is not None:
            self.finishes(name, finished)

    def finishes(self, name: str, reason: str) -> None:
        """The attempt's last line."""
        with self.journal(name).open("a") as journal:
            journal.write(encode(RunFinished(attempt=1, global_step=0, time_unix_s=time.time(), reason=reason)) + "\n")

    @contextmanager
    def writing(self, name: str, steps: int, ill_at: int = 1 << 30) -> Iterator[subprocess.Popen[bytes]]:
        """A process that writes the run's journal."""
        line = [sys.executable, "-c", WRITER, str(self.journal(name)), str(steps), str(ill_at)]
        with running(*line, folder=self.path, name=f"writer-{name}") as process:
            yield process

    @contextmanager
    def watch(self, *words: str, name: str = "watch", **more: str) -> Iterator[Watch]:
        line = (sys.executable, "-m", "sentinel", "watch", *words)
        with running(*line, folder=self.path, name=name, PYTHONPATH=os.pathsep.join(sys.path), **more) as process:
            yield Watch(process, self.path / f"{name}.log")


class Watch:
    """A daemon that runs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def said(self) -> str:
        return self._log.read_text()

    def says(self, words: str, times: int = 1) -> None:
        try:
            until(lambda: self.said().count(words) >= times)
        except AssertionError:
            raise AssertionError(f"not {words!r} in {self.said()}") from None

    def hear(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        return self.process.wait(120)

    def page(self) -> str:
        """What it shows at /metrics."""
        self.says("/metrics of sentinel itself is at port")
        port = self.said().rpartition("itself is at port ")[2].split()[0]
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{port}/metrics", timeout=60
        ) as answer:
            return str(answer.read().decode())

    def shows(self, *series: str) -> None:
        until(lambda: all(one in self.page() for one in series))

    def looks(self, run: str) -> float:
        """When it last saw the run, Unix seconds; 0 before the first time."""
        series = f'sentinel_last_look_timestamp_seconds{{run="{run}"}} '
        found = [line for line in self.page().splitlines() if line.startswith(series)]
        return float(found[0].removeprefix(series)) if found else 0.0


def verdict(run: str, kind: str, attempt: str = "1") -> str:
    return f'sentinel_verdict{{attempt="{attempt}",run="{run}",verdict="{kind}"}} 1.0'
