"""The page's data as one JSON document, and the HTML file that holds it with the scripts that draw it."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Any

import numpy as np

from sentinel.judge.analysis.correlation.columns import correlate_readings
from sentinel.judge.analysis.correlation.table import Correlations
from sentinel.reports.attempts import attempt_rows
from sentinel.reports.past import PageSettings, Past, judged
from sentinel.reports.triage.curves import charts, moments
from sentinel.reports.triage.incidents import incident_document
from sentinel.vocabulary.numbers import dump_json

SCHEMA = 1  # raised when a key changes its meaning
_SCRIPTS = ("uPlot.iife.min.js", "curves.js", "words.js", "charts.js", "panels.js", "address.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


def document(past: Past, settings: PageSettings, *, now_unix_s: float, incident: str | None = None) -> dict[str, Any]:
    """The whole page's data; `incident` is the one that is shown first, else the last one."""
    verdict, findings = judged(past, settings)
    return {
        "schema": SCHEMA,
        "run": settings.run,
        "made_unix_s": now_unix_s,
        "samples": sum(map(len, past.stretches)),
        "unreadable": past.unreadable,
        "notes": list(past.notes),
        "standing": verdict | _standing(past),
        "attempts": [asdict(row) for row in attempt_rows(past)],
        "findings": findings,
        "incidents": [incident_document(one, past, settings) for one in past.incidents],
        "shown_incident": incident or (past.incidents[-1].id if past.incidents else None),
        "correlations": _correlations(correlate_readings(past.stretches)) if past.stretches else None,
        "charts": charts(past),
        "moments": moments(past),
    }


def _standing(past: Past) -> dict[str, Any]:
    if not past.stretches:
        return dict.fromkeys(("attempt", "global_step", "loss", "loss_ratio", "time_unix_s"))
    last = past.stretches[-1]
    names = ("loss", "loss_ratio", "time_unix_s", "lr", "consumed_samples", "consumed_tokens")
    readings = {name: float(last.columns[name][-1]) if last.has(name)[-1] else None for name in names}
    return {"attempt": last.attempt, "global_step": int(last.steps[-1])} | readings


def _correlations(found: Correlations) -> dict[str, Any]:
    """Table 3, and each profile rounded to what a picture can show."""
    profiles = [
        {
            "signal": profile.signal,
            "lags": profile.lags.tolist(),
            "r": [round(r, 4) for r in profile.r.tolist()],
            "band": [round(b, 4) for b in (1.96 / np.sqrt(np.maximum(profile.n_effective, 1.0))).tolist()],
            "best": None if profile.best is None else asdict(profile.row(profile.best)),
        }
        for profile in found.profiles
        if not np.isnan(profile.r).all()
    ]
    rows = [asdict(row) for row in found.rows]
    return {"rows": rows, "profiles": profiles, "infinite_ratios": found.infinite_ratios}


def page(document: Mapping[str, Any], *, live: bool = False) -> str:
    """The HTML. Its content security policy permits the scripts written in it and no request; `live`: to its own
    server."""
    scripts = [_asset(name) for name in _SCRIPTS]
    licence = html.escape(_asset("uPlot-LICENSE.txt").replace("--", "- -"))
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    permitted = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {permitted}; base-uri 'none'; form-action 'none'"
    )
    # no `<`, `>` or `&` in the JSON: it stays inside its script element, whatever a log line holds
    text = dump_json(document).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
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
            f'<script type="application/json" id="document">{text}</script>\n',
            f"<!-- uPlot 1.6.32, vendored:\n{licence}-->\n",
            *(f"<script>{script}</script>\n" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def _asset(name: str) -> str:
    return (files("sentinel.reports.triage") / "assets" / name).read_text(encoding="utf-8")
