"""Runs one part in a process of its own, within its time, and keeps each row as it comes."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json, load_object

from .rows import Rows

__all__ = ["ROOT", "run_part"]

ROOT = Path(__file__).parents[2]

_STOP_S = 15.0
"""Between the request to stop and the end by force."""

_LAST_S = 20.0
"""What a part is told to have less than it has: to end by itself."""


WORKER = (sys.executable, "-m", "benchmarks.gpu.worker")


def run_part(
    name: str,
    rows: Rows,
    *,
    device: str,
    quick: bool,
    folder: Path,
    seconds: float,
    say: Callable[[str], None],
    worker: Sequence[str] = WORKER,
) -> dict[str, str]:
    """Measures the cases that are not done; returns those that failed, {case: why}.

    Where the process ends in the middle of a case, or after an error of the device's, a new one goes on behind it.
    """
    until = time.monotonic() + seconds
    failed: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    while (left := until - time.monotonic()) > 0:
        given = {
            "device": device,
            "quick": quick,
            "folder": str(folder),
            "seconds": max(1.0, left - _LAST_S),
            "leave_out": [*rows.done, *failed],
        }
        tried = len(failed)
        begun, why = _run_once([*worker, name], given, until, rows, failed, say)
        if why is None:
            return failed
        if begun is not None:
            failed[begun] = why
            say(f"{name}: {begun}: {why}")
        elif len(failed) == tried:  # it did not come to a case: a new process would not either
            return {**failed, "its process": why}
    return failed


def _run_once(
    command: Sequence[str],
    given: dict[str, Any],
    until: float,
    rows: Rows,
    failed: dict[str, str],
    say: Callable[[str], None],
) -> tuple[str | None, str | None]:
    """(the case that was under way, why the process did not come to its end; both None where it did)."""
    begun: str | None = None
    name, folder = command[-1], Path(given["folder"])
    log_path = folder.parent / f"{name}.log"
    with log_path.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, dump_json(given)],
            cwd=ROOT,
            env=_environment(given["device"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            for entry in _entries(process, log, until):
                if "begin" in entry:
                    begun = entry["begin"]
                    say(f"{name}: {begun}")
                    continue
                if "row" in entry:
                    rows.add(entry["case"], entry["row"])
                else:
                    failed[entry["case"]] = entry["failed"]
                    say(f"{name}: {entry['case']}: {entry['failed']}")
                begun = None
            in_time = time.monotonic() < until
            if in_time:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_S)
        finally:
            _stop(process)
    if not in_time:
        return begun, "stopped, since its minutes are over"
    if process.returncode == 0:
        return None, None
    return begun, f"ended with exit code {process.returncode}, see {log_path}"


def _entries(process: subprocess.Popen[bytes], log: TextIO, until: float) -> Iterator[dict[str, Any]]:
    """The worker's own lines, until it ends or `until`; what else it prints goes to the log."""
    assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
    descriptor, rest = process.stdout.fileno(), b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(max(0.0, until - time.monotonic())):
            if not (read := os.read(descriptor, 1 << 16)):
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                entry: dict[str, Any] = {}
                if text.startswith(('{"begin"', '{"case"')):
                    with suppress(LineError):
                        entry = load_object(text)
                if entry:
                    yield entry
                elif text:
                    log.write(text + "\n")


def _environment(device: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path)
    environment.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / ".make" / "torch_extensions"))
    if device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return environment


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Where it has not ended: the process and what it has started, which are a session of their own."""
    if process.poll() is None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
    if process.stdout is not None:
        process.stdout.close()
