"""Runs a job script with the real bash, where the launchers are stubs that write down what they are given."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SCRIPTS", "Run", "changed_lines", "parses", "run"]

SCRIPTS = sorted((Path(__file__).parents[1] / "data" / "job_scripts").glob("*.sh"))
BASH = shutil.which("bash") or "/bin/bash"

RECORDER = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" > "$(mktemp "$RECORD/call.XXXXXX")"
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
  if [[ $1 == *=* ]]; then shift; else shift 2; fi
done
exec "$@"
"""

FLOATS = ["--adam-beta1", "--adam-beta2", "--clip-grad", "--lr", "--min-lr"]
WHOLE = [
    *["--eval-interval", "--global-batch-size", "--lr-decay-samples", "--lr-decay-tokens", "--lr-warmup-iters"],
    *["--lr-warmup-samples", "--lr-warmup-tokens", "--micro-batch-size", "--save-interval", "--seed", "--train-iters"],
    *["--train-samples", "--train-tokens"],
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a script did."""

    options: dict[str, Any]
    """The trainer's arguments as argparse reads them; what it does not know is under `other`, in order."""

    programs: list[list[str]]
    """The words of every recorded call, sorted."""

    configs: dict[str, str]
    """Each JSON file that the script wrote."""

    executed: bool
    """Whether the canary was touched."""


def changed_lines(before: str, after: str) -> tuple[int, ...]:
    """The lines of the script as it was, from 1, that are replaced or removed, or before which one is added."""
    lines = [re.findall(r"[^\n]*\n|[^\n]+", each) for each in (before, after)]
    found: list[int] = []
    for tag, start, end, _, _ in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes():
        if tag != "equal":
            found += range(start + 1, max(end, start + 1) + 1)
    return tuple(found)


def run(text: str, *, options: bool = True) -> Run:
    """`options`: whether the trainer's options are read, which have to be numbers where they should be."""
    with tempfile.TemporaryDirectory() as folder:
        sandbox = Path(folder)
        _stubs(sandbox / "bin")
        (sandbox / "calls").mkdir()
        (sandbox / "work").mkdir()
        (sandbox / "job.sh").write_bytes(text.encode("utf-8", "surrogateescape"))
        environment = {
            "PATH": f"{sandbox / 'bin'}:{os.defpath}",
            "RECORD": str(sandbox / "calls"),
            "SLURM_JOBID": "77",
            "SLURM_JOB_ID": "77",
            "SLURM_PROCID": "0",
            "HOME": folder,
        }
        subprocess.run(
            [BASH, str(sandbox / "job.sh")],
            cwd=sandbox / "work",
            env=environment,
            capture_output=True,
            timeout=200,
            check=True,
        )
        calls = [
            path.read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
            for path in (sandbox / "calls").iterdir()
        ]
        calls = sorted([word.replace(folder, "") for word in call] for call in calls)
        written = {path.name: path.read_text(errors="surrogateescape") for path in (sandbox / "work").rglob("*.json")}
        executed = any(path.name.startswith("canary") for path in sandbox.rglob("*"))
    return Run(options=_options(calls) if options else {}, programs=calls, configs=written, executed=executed)


def parses(text: str) -> bool:
    """Whether `bash -n` takes it."""
    done = subprocess.run([BASH, "-n"], input=text.encode("utf-8", "surrogateescape"), capture_output=True, check=False)
    return done.returncode == 0 and not done.stderr


def _stubs(folder: Path) -> None:
    folder.mkdir()
    for name, body in {"srun": SRUN, **dict.fromkeys(["python", "torchrun", "deepspeed"], RECORDER)}.items():
        (folder / name).write_text(body)
        (folder / name).chmod(0o755)


def _options(calls: list[list[str]]) -> dict[str, Any]:
    training = [call for call in calls if any(word.endswith("pretrain_gpt.py") for word in call)]
    if len(training) != 1:
        return {}
    place = next(index for index, word in enumerate(training[0]) if word.endswith("pretrain_gpt.py"))
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in FLOATS:
        parser.add_argument(flag, type=float)
    for flag in WHOLE:
        parser.add_argument(flag, type=int)
    parser.add_argument("--rampup-batch-size", nargs="*")
    parser.add_argument("--no-load-rng", action="store_true")
    parser.add_argument("--deepspeed_config")
    parser.add_argument("--title")
    known, other = parser.parse_known_args(training[0][place + 1 :])
    return {**vars(known), "other": other, "launcher": training[0][:place]}


def config(run_: Run) -> Any:
    """The one DeepSpeed JSON of a run."""
    (text,) = run_.configs.values()
    return json.loads(text)
