"""The document, the drawing and its licence as one HTML file that asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from sentinel.vocabulary.numbers import dump_json

__all__ = ["embedded_json", "page"]

_SCRIPTS = ("uPlot.iife.min.js", "curves.js", "words.js", "charts.js", "panels.js", "address.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


def page(document: Mapping[str, Any], *, live: bool = False) -> str:
    """The HTML. Its content security policy lets nothing run but what is written here, and nothing be fetched.

    `live`: the page may ask its own server for what is new, and nobody else.
    """
    scripts = [_asset(name) for name in _SCRIPTS]
    licence = html.escape(_asset("uPlot-LICENSE.txt").replace("--", "- -"))
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    asks = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {asks}; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
            f"<title>{html.escape(str(document['run']))} · sentinel triage</title>\n",
            '<link rel="icon" href="data:,">\n',
            *(f"<style>{_asset(name)}</style>\n" for name in _STYLES),
            f'</head>\n<body data-live="{"yes" if live else "no"}">\n',
            _asset("page.html"),
            f'<script type="application/json" id="document">{embedded_json(document)}</script>\n',
            f"<!-- uPlot 1.6.32, vendored:\n{licence}-->\n",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def embedded_json(document: Mapping[str, Any]) -> str:
    """JSON that stays inside its script element, whatever a log line holds: no `<`, `>` or `&` is left in it."""
    text = dump_json(document)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (files("sentinel.reports.triage") / "assets" / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
