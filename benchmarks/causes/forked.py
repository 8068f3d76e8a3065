"""Trainers forked from a process that has imported torch, and compiled the hook's kernel: a start costs half a second,
not five."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.plan.observation import JobsSeen, WriterSeen
from trainer_hooks.sample.one_pass.native import kernel

REFERENCE, HUGGING_FACE = "benchmarks.causes.trainer", "benchmarks.causes.huggingface"


def warm(folder: Path, words: Sequence[str]) -> None:
    """Imports what a first start of the trainer imports, as a throwaway start of these words tells it, and compiles the
    kernel."""
    names, places = folder / "modules", ["--save", str(folder / "c"), "--state-dir", str(folder / "s")]
    folder.mkdir(parents=True, exist_ok=True)
    pids = begin([*words, *places], folder / "log", {"MODULES": str(names)})
    while running(pids):
        time.sleep(0.1)
    for name in names.read_text().split() if names.exists() else ():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    kernel()


def begin(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> list[int]:
    """Starts the ranks of a command of one of the trainers above; returns their process ids."""
    ranks = next((int(w.partition("=")[2]) for w in command if w.startswith("--nproc_per_node=")), 1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    found = []
    for rank in range(ranks):
        of = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        own = {**environment, **of, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        if not (pid := os.fork()):
            _be(list(command), log, own)
        found.append(pid)
    return found


def _be(command: list[str], log: Path, environment: Mapping[str, str]) -> None:
    code = 1
    try:
        os.setsid()
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(environment)
        sys.argv = command[next(i for i, word in enumerate(command) if word in (REFERENCE, HUGGING_FACE)) :]
        code = importlib.import_module(sys.argv[0]).main()
        if names := environment.get("MODULES"):
            Path(names).write_text("\n".join(sys.modules))
    except BaseException as error:  # noqa: BLE001 - the end of this process
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(code)


def running(pids: list[int]) -> list[int]:
    """Those that have not ended; the others are taken from the list."""
    for pid in list(pids):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        pids.remove(pid)
    return pids


class Forked:
    """A local launcher's command, forked."""

    def __init__(self, launcher: Any) -> None:
        self._of, self._pids = launcher, list[int]()

    def look(self, _: object) -> JobsSeen:
        return JobsSeen(writers=tuple(WriterSeen(id=str(pid)) for pid in running(self._pids)))

    def start(self, *_: object, **__: object) -> None:
        environment = {"SENTINEL_STATE_DIR": self._of.jobs.state_dir} | self._of.environment()
        self._pids = begin(self._of.command, self._of.log, environment)

    def stop(self, *_: object) -> None:
        end = time.monotonic() + 20
        while running(self._pids):
            for pid in self._pids:
                os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
            time.sleep(0.05)
