"""A page for a program of the operator's own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from sentinel.adapters.paging import settings
from sentinel.plan.page import Page
from sentinel.vocabulary.errors import PagerError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["Command"]


class Command:
    """Runs a program, the page on its standard input. Its output is not kept: a script in trace mode prints tokens."""

    def __init__(self, of: settings.Command, environ: Mapping[str, str]) -> None:
        self._of = of
        self._environ = environ

    def check(self) -> None:
        """It has no secret of ours."""

    def send(self, page: Page) -> None:
        """Returns when it has arrived. PagerError, ConfigError."""
        of, program = self._of, self._of.command[0]
        shown = ("summary", "severity", "status", "key", "id", "run", "incident", "topic", "runbook")
        document = page.to_json()
        facts = {f"SENTINEL_PAGE_{key.upper()}": str(document[key] or "").replace("\0", "") for key in shown}
        try:
            process = subprocess.Popen(
                of.command,
                env=dict(self._environ) | facts,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise PagerError(f"{program} can't be run: {error.strerror}") from error
        with process:
            try:
                process.communicate(dump_json(document).encode(), timeout=of.timeout_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise PagerError(f"{program} did not end within {of.timeout_s:g} s") from None
        if process.returncode != 0:
            raise PagerError(f"{program} ended with exit code {process.returncode}")
