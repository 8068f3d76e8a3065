"""`sentinel doctor`: prints what the checks found."""

from __future__ import annotations

import typer

from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, print_json
from sentinel.daemon.doctor import examine
from sentinel.daemon.run_files import find_config

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def doctor(run: Run = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Writes to scratch folders of its own only."""
    findings = examine(find_config(run, config_dir))
    if as_json:
        print_json([{"answer": f.answer, "what": f.what, "sentence": f.sentence} for f in findings])
    else:
        for f in findings:
            typer.echo(f"{_MARKS[f.answer]}  {f.what}: {f.sentence}")
    return int(any(f.answer == "bad" for f in findings))
