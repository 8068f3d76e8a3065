"""Programs in processes that are forked from one which has imported what they import: each is a process of its own, and
a start of a trainer takes half a second, not six.

What a program imports at its top is imported before it is first forked, and what it had imported by its end before the
next: a test of what an import does starts a process as a user does.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# torch imports the first where an optimizer is made: three seconds
WARM = ("torch._dynamo", "torch.utils.tensorboard", "deepspeed", "trainer_hooks.gpt.train")
GRACE_S = 30.0  # of the ranks that are left when one has failed, as torchrun has it


def forked(
    program: str,
    *words: str,
    ranks: int = 1,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 200,
) -> subprocess.CompletedProcess[str]:
    """What a Forked has said by its end. TimeoutExpired."""
    with TemporaryDirectory() as folder:
        files = Path(folder, "stdout"), Path(folder, "stderr")
        process = Forked(program, *words, ranks=ranks, cwd=cwd, env=env, stdout=files[0], stderr=files[1])
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
            said = [file.read_text(errors="replace") for file in files]
    return subprocess.CompletedProcess([program, *words], code, *said)


class Forked:
    """A module (`a.b`) or a file (`….py`) that runs in a process for each rank, with torchrun's RANK, LOCAL_RANK,
    WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A rank that fails ends the others."""

    def __init__(
        self,
        program: str,
        *words: str,
        stdout: Path,
        stderr: Path,
        ranks: int = 1,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        for file in (stdout, stderr):
            file.touch()
        asked = {"program": program, "words": words, "ranks": ranks, "cwd": str(cwd or Path.cwd())}
        self._server, self._ends = _server(), 0.0
        files = {"files": [str(stdout), str(stderr)], "env": dict(os.environ if env is None else env)}
        self.pids: list[int] = self._server.asked({"start": asked | files})
        self.codes: dict[int, int] = {}
        self.returncode: int | None = None  # the first that is not 0, as subprocess has it, once all have ended

    @property
    def pid(self) -> int:
        """Of rank 0."""
        return self.pids[0]

    def poll(self) -> int | None:
        if self.returncode is not None:
            return self.returncode
        left = [pid for pid in self.pids if pid not in self.codes]
        self.codes |= {
            pid: code for pid, code in zip(left, self._server.asked({"ended": left}), strict=True) if code is not None
        }
        failed = next((code for code in self.codes.values() if code), 0)
        if len(self.codes) == len(self.pids):
            self.returncode = failed
        elif failed:
            self._ends = self._ends or time.monotonic() + GRACE_S
            self.send_signal(signal.SIGTERM if time.monotonic() < self._ends else signal.SIGKILL)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pids), timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        for pid in self.pids:
            if pid not in self.codes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self.wait(60)


class _Server:
    """Reads a request a line, and answers it with a line."""

    def __init__(self) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        self._folder = TemporaryDirectory()
        command = [sys.executable, "-m", "tests.support.forked_programs", str(Path(self._folder.name, "modules"))]
        self._of = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        atexit.register(self._of.kill)

    def asked(self, request: Mapping[str, Any]) -> Any:
        assert self._of.stdin is not None
        assert self._of.stdout is not None
        self._of.stdin.write(json.dumps(request).encode() + b"\n")
        self._of.stdin.flush()
        line = self._of.stdout.readline()
        assert line, f"the process that programs are forked from has ended: exit {self._of.wait(10)}"
        return json.loads(line)


@cache
def _server() -> _Server:
    return _Server()


def serve() -> None:
    """Until stdin ends; in a forked process it returns once the program has ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in WARM:
        importlib.import_module(name)
    importlib.import_module("trainer_hooks.sample.one_pass.native").kernel()  # compiled once, not at each start
    codes, modules = dict[int, int](), Path(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if (start := request.get("start")) is None:
            answer: list[Any] = [_code(pid, codes) for pid in request["ended"]]
        elif (pids := _started(start, modules)) is not None:
            answer = pids
        else:
            answers.close()
            return _run(start, modules)
        print(json.dumps(answer), file=answers, flush=True)
    return None


def _code(pid: int, codes: dict[int, int]) -> int | None:
    """None while it runs."""
    if pid not in codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes.get(pid)


def _started(start: Mapping[str, Any], modules: Path) -> list[int] | None:
    """The processes of the ranks; None in one of them."""
    _import_all(_imported_by(start["program"], start["cwd"]))
    _import_all(modules.read_text().split() if modules.exists() else ())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port, size = probe.getsockname()[1], start["ranks"]
    pids = []
    for rank in range(size):
        if not (pid := os.fork()):
            of = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
            start["env"].update({name: str(value) for name, value in of.items()}, MASTER_ADDR="127.0.0.1")
            return None
        pids.append(pid)
    return pids


def _imported_by(program: str, cwd: str) -> Iterator[str]:
    """What the program's own file imports at its top."""
    found = importlib.util.find_spec(program) if not program.endswith(".py") else None
    file = Path(cwd, program) if found is None else Path(str(found.origin))
    for node in ast.parse(file.read_bytes()).body:
        yield from (alias.name for alias in node.names) if isinstance(node, ast.Import) else ()
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield str(node.module)


def _import_all(names: Iterable[str]) -> None:
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # the program's own import says what is wrong
                importlib.import_module(name)


def _run(start: Mapping[str, Any], modules: Path) -> None:
    program = start["program"]
    os.environ.clear()
    os.environ.update(start["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(start["files"], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    os.chdir(start["cwd"])
    sys.argv = [program, *start["words"]]
    own = str(Path(program).resolve().parent) if program.endswith(".py") else start["cwd"]
    sys.path[:0] = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    finally:
        with contextlib.suppress(OSError):
            modules.write_text("\n".join(list(sys.modules)))


if __name__ == "__main__":
    serve()
