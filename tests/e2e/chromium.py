"""The triage page in a real Chromium: opened, looked at, served live."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.cli.commands import app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
DEADLINE_MS = 60_000
"""So long only a machine takes on which nothing goes on any more."""


def written(configuration: Path) -> Path:
    """The page in a file beside the configuration."""
    page = configuration.parent / "report.html"
    app(["triage", "--run", str(configuration), "-o", str(page)], standalone_mode=False)
    return page


@contextmanager
def opened(
    browser: Browser, address: str, *, drawn: bool = True, **how: Any
) -> Iterator[tuple[Page, list[str], list[str]]]:
    """The page, what its console said that is an error, and the addresses that it asked for.

    It is there once the loss is `drawn`; a run that has not begun yet has none.
    """
    page = browser.new_page(**how)
    page.set_default_timeout(DEADLINE_MS)
    wrong: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    if drawn:
        page.wait_for_selector("[data-chart=loss] canvas")
    try:
        yield page, wrong, asked
    finally:
        page.close()


def where(page: Page) -> str:
    """The page's address, asked of the page: of one that it has changed itself Playwright hears a moment later."""
    return str(page.evaluate("location.href"))


def view(page: Page) -> tuple[float, float]:
    found = page.evaluate("[Triage.view.min, Triage.view.max]")
    return found[0], found[1]


def until(page: Page, expression: str) -> None:
    """Waits until the expression holds. The page's own policy forbids what Playwright's waiting does: eval."""
    end = time.monotonic() + DEADLINE_MS / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never: {expression}"
        page.wait_for_timeout(50)


@contextmanager
def served(configuration: Path, *more: str) -> Iterator[str]:
    command = [sys.executable, "-m", "sentinel", "ui", "--run", str(configuration), "--port", "0", *more]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert re.match(r"http://[\d.]+:\d+/", address)
        yield address
    finally:
        server.terminate()  # what a shell starts in the background ignores SIGINT
        server.wait(60)
        if server.stdout is not None:
            server.stdout.close()
