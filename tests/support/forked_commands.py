"""Commands of sentinel that are forked from a process which has imported them: each is a process to be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.01


def imported() -> None:
    """Imports what the commands need, before the first of them is forked."""
    import sentinel.cli.commands
    import sentinel.cli.rollback
    import sentinel.cli.undo
    import sentinel.cli.watch
    import sentinel.daemon.supervisor  # noqa: F401


class Command:
    """`sentinel VERB …` in a process of its own, forked from this one."""

    def __init__(self, run: Path, words: tuple[str, ...]) -> None:
        """`run`: its configuration; what the command says goes into a file beside it."""
        self.words, self._log = words, run.parent / f"{words[0]}.out"
        self.code: int | None = None  # as subprocess has it; None while it runs
        self.pid = os.fork()
        if self.pid == 0:
            _become(["sentinel", words[0], "--run", str(run), *words[1:]], self._log)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def end(self, number: signal.Signals, within_s: float = 60.0) -> int | None:
        if self.poll() is None:
            os.kill(self.pid, number)
        until(lambda: self.poll() is not None, within_s)
        return self.code

    def said(self) -> str:
        """The end of all that commands of its verb have said."""
        return self._log.read_text(errors="replace")[-600:] if self._log.exists() else ""


def _become(words: list[str], log: Path) -> None:
    """In the new process: the command, and nothing of what this one was."""
    code = 70
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(told, 1)
        os.dup2(told, 2)
        from sentinel.cli import main

        sys.argv = words
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # noqa: BLE001 - said where the command's words go
        print(f"Traceback: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def until(what: Callable[[], object], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True
