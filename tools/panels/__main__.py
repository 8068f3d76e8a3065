"""Draws the panels of Spike triage with Grafana's own components, from a real run's data: docs/grafana-panels-*.png.

`make panels` brings what it needs. No Grafana server is asked, and the page asks nothing of any network.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Route, sync_playwright

from tests.e2e.chromium import CHROMIUM
from tools.panels.recorded import dashboard, recorded

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
WIDTH = 1440
HOME = "http://panels.invalid/"
"""Nothing is there: what the page asks for is answered from files by the browser's own driver."""

FONTS = {
    "public/fonts/inter/Inter-Regular.woff2": "inter-latin-400-normal.woff2",
    "public/fonts/inter/Inter-Medium.woff2": "inter-latin-500-normal.woff2",
}
"""A server brings the font; its components only name it."""

PAGE = """<!doctype html><meta charset="utf-8"><title>Panels</title><link rel="stylesheet" href="index.css">
<div id="root"></div><script src="index.js"></script>"""


def main() -> None:
    """`--modules` is where `npm ci` was run; `--answers` keeps what Prometheus said, to draw the same night again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--modules", type=Path, required=True, help="the node_modules of tools/panels/package.json")
    parser.add_argument("--answers", type=Path, help="a file: read where it is there, else written")
    asked = parser.parse_args()
    if asked.answers is not None and asked.answers.exists():
        answers = json.loads(asked.answers.read_text())
    else:
        answers = recorded()
        if asked.answers is not None:
            asked.answers.write_text(json.dumps(answers))
    handed = json.dumps(answers | {"dashboard": dashboard()})
    with tempfile.TemporaryDirectory(prefix="panels-") as built, sync_playwright() as started:
        _bundle(asked.modules.resolve(), Path(built))
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        roots = [Path(built), asked.modules / "@grafana/ui/dist", asked.modules / "@fontsource/inter/files"]
        for scheme in ("dark", "light"):
            picture = _picture(browser, roots, handed, scheme)
            _written(picture, DOCS / f"grafana-panels-{scheme}.png")
        browser.close()


def _bundle(modules: Path, into: Path) -> None:
    loaders = [f"--loader:.{kind}=dataurl" for kind in ("woff", "woff2", "ttf")]
    more = [
        "--bundle",
        "--minify",
        "--jsx=automatic",
        '--define:process.env.NODE_ENV="production"',
        "--log-level=error",
    ]
    line = [modules / ".bin" / "esbuild", HERE / "page" / "index.tsx", f"--outdir={into}", *loaders, *more]
    subprocess.run([*map(str, line)], check=True, env=dict(os.environ, NODE_PATH=str(modules)))


def _picture(browser: Browser, roots: list[Path], handed: str, scheme: str) -> bytes:
    """Of the whole board, once nothing moves any more. An error on the page is one here."""

    def answer(route: Route) -> None:
        path = route.request.url.removeprefix(HOME)
        if not path:
            route.fulfill(content_type="text/html", body=PAGE)
            return
        found = [root / FONTS.get(path, path) for root in roots if (root / FONTS.get(path, path)).is_file()]
        route.fulfill(path=found[0]) if found else route.fulfill(status=404)

    wrong: list[str] = []
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console", lambda said: wrong.append(f"{said.text} {said.location['url']}") if said.type == "error" else None
    )
    page.route("**/*", answer)
    page.add_init_script(f"window.RECORDED = {handed}; window.LIGHT = {json.dumps(scheme == 'light')};")
    page.goto(HOME)
    try:
        page.wait_for_function("window.drawn && document.querySelectorAll('#board canvas').length > 0")
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1000)
        board = page.locator("#board").bounding_box()
        if wrong or board is None:
            raise RuntimeError("; ".join(wrong) or "nothing was drawn")
        page.set_viewport_size({"width": WIDTH, "height": int(board["height"])})
        page.wait_for_timeout(1000)
        return page.screenshot()
    except Exception as error:
        raise RuntimeError("; ".join([*wrong, str(error)])) from error
    finally:
        page.close()


def _written(picture: bytes, path: Path) -> None:
    """In 256 colours: half the size, and no eye sees it."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
