"""Performs runs, one at a time. A run that is done is not run again; one that was cut short begins anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.adapters.journal import Journals
from sentinel.vocabulary.sample import Record, RunFinished

from .cases import Run

__all__ = ["Runs", "records_of"]

ROOT = Path(__file__).parents[2]


def records_of(folder: Path) -> list[Record] | None:
    """What the attempt wrote that came to its end; None where none did."""
    records = Journals(folder / "state").poll()
    whole = {r.attempt for r in records if isinstance(r, RunFinished) and r.reason == "finished"}
    return [r for r in records if r.attempt == max(whole)] if whole else None


class Runs:
    """In a folder, one folder for each."""

    def __init__(
        self,
        folder: Path,
        *,
        minutes: float,
        say: Callable[[str], None],
        one_each: bool = False,
        to_the_end: bool = False,
    ) -> None:
        """`minutes`: after so many, no further run is begun; with `to_the_end` none that would end after them, as long
        as the longest so far. `one_each`: a process for each, so that nothing of an earlier one is left on the
        device."""
        self._folder = folder
        self._until = time.monotonic() + 60 * minutes
        self._say = say
        self._one_each = one_each
        self._to_the_end = to_the_end
        self._worker: subprocess.Popen[str] | None = None
        self.took_s: list[float] = []
        """Of each run that was made here and now."""

    def records(self, run: Run) -> list[Record] | None:
        """What the run wrote, where it is done."""
        return records_of(self._folder / run.name)

    def perform(self, runs: Sequence[Run]) -> None:
        """All that are not done yet, as far as the minutes go."""
        missing = list({run.name: run for run in runs if self.records(run) is None}.values())
        if len(missing) < len({run.name for run in runs}):
            self._say(f"{len({run.name for run in runs}) - len(missing)} runs are done already")
        try:
            for number, run in enumerate(missing, 1):
                if time.monotonic() + self._expected_s() > self._until:
                    self._say(f"the minutes are over: {len(missing) - number + 1} runs are not made")
                    break
                began = time.monotonic()
                ended = self._perform(run)
                self.took_s.append(time.monotonic() - began)
                left = (len(missing) - number) * sum(self.took_s) / len(self.took_s) / 60
                took = f"{self.took_s[-1]:.0f} s, about {left:.0f} min to go"
                self._say(f"[{number}/{len(missing)}] {run}: {ended}, {took}")
        finally:
            self._stop()

    def _expected_s(self) -> float:
        return max(self.took_s, default=0.0) if self._to_the_end else 0.0

    def _perform(self, run: Run) -> str:
        folder = self._folder / run.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "arguments.json").write_text(json.dumps(run.arguments), encoding="utf-8")
        where = [f"--state-dir={folder / 'state'}", f"--save={folder / 'checkpoints'}"]
        try:
            worker = self._ready()
            assert worker.stdin is not None  # noqa: S101 - for mypy: it is a pipe
            worker.stdin.write(json.dumps({"arguments": [*run.arguments, *where]}) + "\n")
            worker.stdin.flush()
            return self._answer(worker)
        except BrokenPipeError:
            return self._answer(worker)
        finally:
            if self._one_each:
                self._stop()

    def _ready(self) -> subprocess.Popen[str]:
        if self._worker is None or self._worker.poll() is not None:
            with (self._folder / "worker.log").open("ab") as log:
                self._worker = subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.papers.worker"],
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._answer(self._worker)
        return self._worker

    def _answer(self, worker: subprocess.Popen[str]) -> str:
        """How it ended; what the trainer prints meanwhile goes to the log."""
        assert worker.stdout is not None  # noqa: S101 - for mypy: it is a pipe
        with (self._folder / "worker.log").open("a", encoding="utf-8") as log:
            for line in worker.stdout:
                if line.startswith('{"ended"'):
                    return str(json.loads(line)["ended"])
                log.write(line)
        return f"the trainer ended with exit code {worker.wait()}, see {self._folder / 'worker.log'}"

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.terminate()  # a run that is under way stops after its step
            self._worker.communicate()
            self._worker = None
