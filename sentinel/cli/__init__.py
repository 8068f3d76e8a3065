"""The command line, and the composition root: builds adapters, calls the loop. One short function per command.

Exit codes: 0 done, 1 the answer is no, 2 wrong usage or configuration, 3 another system could not be reached (try
again), 4 a person is needed.

In: words of a command line. Out: text, or with --json one document, on stdout; logs on stderr; an exit code.
"""

from __future__ import annotations

import io
import sys

from sentinel.durable import os_errors_named
from sentinel.vocabulary.errors import ConfigError, PermanentError, SentinelError, exit_code_of
from sentinel.vocabulary.texts import neutral


def main() -> None:
    for stream in (sys.stdout, sys.stderr):  # the name of a file may hold bytes that are no text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            from sentinel.cli.commands import app  # the command line's own needs are imported when it is really called
        except ModuleNotFoundError as error:
            raise ConfigError(f"{error.name} is not installed; pip install 'training-sentinel[daemon]'") from error
        with os_errors_named("a file"):
            app()
    except SentinelError as error:  # one line on stderr, and what the caller should do as the exit code
        print(neutral(f"sentinel: {error}"), file=sys.stderr)  # noqa: T201 - the outermost edge of a command line
        if isinstance(error, PermanentError):
            from sentinel.cli.shared import advise

            advise(str(error))
        sys.exit(exit_code_of(error))
