"""A command of the configuration, run with a deadline and a bound on what it prints."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.vocabulary.errors import CommandFailed

_MOST_BYTES = 8 << 20  # of one answer
_POLL_S = 0.02


def run(command: Sequence[str], cwd: Path, timeout_s: float, environment: Mapping[str, str]) -> str:
    """What the command has printed once it has ended, whatever it has left running. CommandFailed where it can't be
    run, fails, takes longer, or prints more than 8 MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise CommandFailed(command[0], f"can't be run: {error}") from error
        end = time.monotonic() + timeout_s
        while process.poll() is None:
            late = time.monotonic() > end
            if late or max(os.fstat(file.fileno()).st_size for file in (out, errors)) > _MOST_BYTES:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                why = f"no answer within {timeout_s:g} s" if late else f"printed more than {_MOST_BYTES >> 20} MiB"
                raise CommandFailed(command[0], why)
            time.sleep(_POLL_S)
        if process.returncode != 0:
            errors.seek(max(0, os.fstat(errors.fileno()).st_size - 4096))
            lines = errors.read().decode(errors="replace").strip().splitlines()
            said = f": {lines[-1][:300]}" if lines else ""
            raise CommandFailed(command[0], f"exit code {process.returncode}{said}")
        out.seek(0)
        printed = out.read(_MOST_BYTES + 1)
        if len(printed) > _MOST_BYTES:
            raise CommandFailed(command[0], f"printed more than {_MOST_BYTES >> 20} MiB")
        return printed.decode(errors="surrogateescape")
