"""Rollbacks in place against rollbacks by a new job, under the Slurm that is there (SLURM_CONF, PATH).

    python benchmarks/in_place_slurm.py [--quick] [--json] [--rewinds N] [--ranks 1,2] [--zero 1]

An sbatch job trains the reference trainer and saves every 10 steps. Then, by turns and in one sitting, N times each, as
a person types it: `sentinel rollback --to global_step10 --yes`, and the same with `--restart job`. Seconds from
`decided` in the incident log to the end of the first new step in the metrics journal: parking or stopping the job, the
moves of the files, and the resume, or the submission, the queue and the start of the new job. Nothing else waits in the
queue. Median and largest; Slurm's job ids, counted, show which way was taken.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sentinel.adapters.incident_log import IncidentLog
from sentinel.adapters.journal import Journals
from sentinel.demo.restarts import MeasuredRestart, restarts_of
from sentinel.vocabulary.sample import RunStarted, Sample

PATIENCE_S = 600.0
CONFIGURATION = """\
[run]
name = "small"
checkpoints = "checkpoints"
state_dir = "state"

[launcher]
kind = "slurm"
job_name = "small"
query_interval_s = 1.0

[policy]
confirm_within_s = 600
max_starts_per_hour = 100
"""


def main(arguments: list[str] | None = None) -> None:
    asked = _parser().parse_args(arguments)
    rewinds = 2 if asked.quick else asked.rewinds
    rows = []
    for ranks in map(int, asked.ranks.split(",")):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            job = Job(folder=Path(folder), ranks=ranks, zero=asked.zero)
            try:
                rows.append(job.row(rewinds))
            finally:
                _slurm("scancel", "--name=small")
        if not asked.json:
            _print(rows[-1])
    if asked.json:
        print(json.dumps({"rows": rows}))


@dataclass(frozen=True, kw_only=True)
class Job:
    folder: Path
    ranks: int
    zero: int

    def row(self, rewinds: int) -> dict[str, Any]:
        self._submit()
        made = [self._rolled_back(*words) for _ in range(rewinds) for words in ((), ("--restart", "job"))]
        in_place, by_job = ([one.first_step_s for one in made if one.in_place is way] for way in (True, False))
        jobs = {r.job_id for r in Journals(self.folder / "state").poll() if isinstance(r, RunStarted)}
        return {
            "ranks": self.ranks,
            "zero": self.zero,
            "rewinds": len(in_place),
            "in_place_s": median(in_place),
            "in_place_most_s": max(in_place),
            "job_restarts": len(by_job),
            "job_restart_s": median(by_job),
            "job_restart_most_s": max(by_job),
            "slurm_jobs": len(jobs),
        }

    def _submit(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "small.toml").write_text(CONFIGURATION)
        torchrun = f"-m torch.distributed.run --standalone --nproc_per_node={self.ranks} -m trainer_hooks.gpt"
        model = f"--seqlen 32 --global-batch 4 --lr 1e-3 --lr-warmup 5 --lr-decay 1000 --zero {self.zero}"
        files = f"--save-interval 10 --save {self.folder}/checkpoints --state-dir {self.folder}/state"
        words = f"{sys.executable} {torchrun} {model} {files} --steps 1000000"
        script = self.folder / "train.sh"
        lines = ("#!/bin/bash", "#SBATCH --job-name=small --time=4:00:00", "export OMP_NUM_THREADS=1")
        script.write_text("\n".join((*lines, f"exec {words}", "")))
        _slurm("sbatch", f"--ntasks={self.ranks}", f"--chdir={self.folder}", str(script))
        self._until(lambda: self._steps(1) >= 25)

    def _rolled_back(self, *words: str) -> MeasuredRestart:
        before = len(self._restarts())
        typed = [sys.executable, "-m", "sentinel", "rollback", "--run", str(self.folder / "small.toml")]
        words = (*typed, "--to", "global_step10", "--yes", *words)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}")
        self._until(lambda: len(self._restarts()) > before)
        attempt = before + 2  # The run's own is the first
        self._until(lambda: self._steps(attempt) >= 25)
        return self._restarts()[-1]

    def _restarts(self) -> tuple[MeasuredRestart, ...]:
        log = IncidentLog(self.folder / "state" / "incidents.jsonl")
        return restarts_of(log.read(), Journals(self.folder / "state").poll())

    def _steps(self, attempt: int) -> int:
        records = Journals(self.folder / "state").poll()
        return max((r.global_step for r in records if isinstance(r, Sample) and r.attempt == attempt), default=0)

    def _until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("slurm-*.out"))
                raise SystemExit(f"it did not happen within {PATIENCE_S:.0f} s: {logs}")
            time.sleep(0.2)


def _slurm(*command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    subprocess.run(command, check=True, capture_output=True, env=environment)


def _print(row: dict[str, Any]) -> None:
    in_place = f"{row['in_place_s']:.1f} ({row['in_place_most_s']:.1f}), n = {row['rewinds']}"
    by_job = f"{row['job_restart_s']:.1f} ({row['job_restart_most_s']:.1f}), n = {row['job_restarts']}"
    told = f"ranks {row['ranks']}, ZeRO {row['zero']}: in place {in_place}; new job {by_job}; seconds: median (largest)"
    print(f"{told}; {row['slurm_jobs']} Slurm jobs", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rewinds", type=int, default=5)
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--zero", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
