"""Runs one case in a process of its own: killed with all that it has started when its time is over."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sentinel.vocabulary.numbers import dump_json, load_object

from .case import Case

__all__ = ["ROOT", "die_with_the_parent", "run_case", "run_child"]

ROOT = Path(__file__).parents[2]

_PR_SET_PDEATHSIG = 1


def run_case(
    name: str, case: Case | None, *, device: str, quick: bool, folder: Path, limit_s: float, hang: bool = False
) -> dict[str, Any]:
    """{"row": its row}, or {"failed": why, as a sentence}, with "in_time": False where it was killed. What the process
    prints is added to folder/log.txt. Case None: what the machine is."""
    work, log_path = folder / "work", folder / "log.txt"
    shutil.rmtree(work, ignore_errors=True)  # of the case before
    work.mkdir(parents=True)
    answer = work / "answer.json"
    given = {
        "case": None if case is None else [case.module, case.measure, *case.given],
        "device": device,
        "quick": quick,
        "folder": str(work),
        "answer": str(answer),
        "hang": hang,
        "parent": os.getpid(),
    }
    with log_path.open("ab") as log:
        log.write(f"\n==== {name}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.worker", dump_json(given)],
            cwd=ROOT,
            env=_environment(device),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return {"failed": f"no answer after {limit_s:.0f} s: killed", "in_time": False}
        finally:
            with suppress(ProcessLookupError):  # what it has started and left behind, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not answer.exists():
        return {"failed": f"its process ended with exit code {code} and no answer", "in_time": True}
    return {**load_object(answer.read_text(encoding="utf-8")), "in_time": True}


def run_child(command: Sequence[str], *, env: dict[str, str] | None = None) -> tuple[int, str]:
    """(exit code, what it printed) of a case's own child, whose lines go into the log as they come. It ends with the
    case: the runner kills both after the case's time."""
    printed = ""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=die_with_the_parent,  # noqa: PLW1509 - no thread of this process holds a lock that it takes
    ) as child:
        for line in child.stdout or ():
            print(line, end="", flush=True)
            printed += line
    print(f"exit code {child.returncode}", flush=True)
    return child.returncode, printed


def die_with_the_parent() -> None:
    """This process is killed when its parent is: no case goes on holding the device after the runner was killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _environment(device: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path, PYTHONUNBUFFERED="1")
    environment.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / ".make" / "torch_extensions"))
    if device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return environment
