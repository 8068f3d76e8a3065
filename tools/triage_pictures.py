"""The pictures of docs/TRIAGE.md: `python -m tools.triage_pictures RUN.toml`, of a run of `sentinel demo`.

Needs Debian's chromium and playwright.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from sentinel.cli.commands import app

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = (("triage-1440-light.png", 1440, 1420, "light"), ("triage-390-dark.png", 390, 1500, "dark"))
"""Name, width and height in pixels, colour scheme."""


def main(configuration: str) -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        page_file = Path(folder) / "report.html"
        app(["triage", "--run", configuration, "-o", str(page_file)], standalone_mode=False)
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        for name, width, height, scheme in PICTURES:
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page.goto(page_file.as_uri())
            page.wait_for_selector("[data-chart=loss] canvas")
            page.wait_for_timeout(500)  # the other charts are drawn in the frames after it
            page.screenshot(path=DOCS / name)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
