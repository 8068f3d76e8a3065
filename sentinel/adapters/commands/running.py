"""A command of the configuration, run with a deadline and a bound on what it prints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, cast

from sentinel.vocabulary.errors import CommandFailed

_MOST_BYTES = 8 << 20  # of one answer


def run(command: Sequence[str], cwd: Path, timeout_s: float, environment: Mapping[str, str]) -> str:
    """What the command prints. CommandFailed where it can't be run, fails, takes longer, or prints more than 8 MiB."""
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CommandFailed(command[0], f"can't be run: {error}") from error
    late, said = threading.Event(), list[bytes]()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout_s, end)
    stdout, stderr = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)
    drain = threading.Thread(target=_last_of, args=(stderr, said), daemon=True)
    with process:
        timer.start()
        drain.start()
        try:
            printed = stdout.read(_MOST_BYTES + 1)
            if len(printed) > _MOST_BYTES:
                end()
            process.wait()
            drain.join(timeout_s)
        finally:
            timer.cancel()
    if len(printed) > _MOST_BYTES:
        raise CommandFailed(command[0], f"printed more than {_MOST_BYTES >> 20} MiB")
    if late.is_set():
        raise CommandFailed(command[0], f"no answer within {timeout_s:g} s")
    if process.returncode != 0:
        lines = b"".join(said).decode(errors="replace").strip().splitlines()
        raise CommandFailed(command[0], f"exit code {process.returncode}{f': {lines[-1][:300]}' if lines else ''}")
    return printed.decode(errors="surrogateescape")


def _last_of(pipe: IO[bytes], said: list[bytes]) -> None:
    """Keeps what was written last."""
    while piece := pipe.read(4096):
        said[:] = [*said[-1:], piece]
