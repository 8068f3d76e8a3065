"""Answers one case: `python -m benchmarks.gpu.worker GIVEN`. Started by running.py; the answer goes into a file."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sentinel.vocabulary.numbers import dump_json, load_object

from .case import Row, Setting
from .running import die_with_the_parent

__all__ = ["main"]


def main() -> None:
    """Writes {"row": …} or {"failed": why}."""
    given = load_object(sys.argv[1])
    die_with_the_parent()
    if os.getppid() != given["parent"]:  # the runner was killed before this line
        return
    if given["hang"]:
        _hang()
    setting = Setting(device=given["device"], quick=given["quick"], folder=Path(given["folder"]))
    try:
        if given["case"] is None:
            answer = {"row": _machine(setting)}
        else:
            module, measure, *arguments = given["case"]
            answer = {"row": getattr(importlib.import_module(f".{module}", __package__), measure)(setting, *arguments)}
    except Exception as error:  # noqa: BLE001 - a case that fails is an answer
        traceback.print_exc()
        answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    path = Path(given["answer"])
    path.with_suffix(".new").write_text(dump_json(answer), encoding="utf-8")
    path.with_suffix(".new").rename(path)


def _hang() -> None:
    """For rehearsals: a case that neither answers nor ends, with a child that does not either, and one of a case's."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(3600)"]
    with (
        subprocess.Popen(sleeps) as other,
        subprocess.Popen(sleeps, preexec_fn=die_with_the_parent) as own,  # noqa: PLW1509 - there is no thread yet
    ):
        print(f"hangs; its children are {other.pid} and {own.pid}", flush=True)
        own.wait()


def _machine(setting: Setting) -> Row:
    """The machine, without its name, and what is on it."""
    import torch

    if setting.on_cuda and not torch.cuda.is_available():
        return {"hardware": "none", "torch": torch.__version__}
    on_cuda = setting.on_cuda
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30 if on_cuda else 0.0
    return {
        "hardware": f"one {torch.cuda.get_device_name()}" if on_cuda else f"a CPU, {platform.machine()}",
        "form": "quick: it shows that the cases run, and its figures say nothing" if setting.quick else "full",
        "memory": f"{memory:.0f} GiB on the device" if on_cuda else "none on a device",
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if on_cuda else "none",
        "cuda": str(torch.version.cuda) if on_cuda else "none",
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "deepspeed": _imported("deepspeed"),
        **{name: shutil.which(name) or "none" for name in ("nvcc", "compute-sanitizer")},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _imported(name: str) -> str:
    """Its version, or why it can't be imported."""
    try:
        return str(importlib.import_module(name).__version__)
    except Exception as error:  # noqa: BLE001 - it looks for compilers and drivers while it is imported
        traceback.print_exc()
        return f"none: {type(error).__name__}: {error}".splitlines()[0][:200]


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # see trainer_hooks.gpt.__main__.leave
