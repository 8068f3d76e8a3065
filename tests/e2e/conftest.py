"""A Chromium for the tests that look at a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.chromium import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="not installed: pip install playwright")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox", "--disable-gpu"]
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=120_000)
        yield chromium
        chromium.close()
