"""`sentinel doctor`: prints what the checks found."""

from __future__ import annotations

from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, echo, looking_line, print_json
from sentinel.config.run_files import find_config
from sentinel.daemon.doctor import examine

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def doctor(run: Run = None, config_dir: ConfigDir = RUNS, as_json: Json = False) -> int:
    """Writes to scratch folders of its own only."""
    config = find_config(run, config_dir)
    with looking_line() as progress:
        findings = examine(config, progress)
    if as_json:
        print_json([{"answer": f.answer, "what": f.what, "sentence": f.sentence} for f in findings])
    else:
        for f in findings:
            echo(f"{_MARKS[f.answer]}  {f.what}: {f.sentence}")
    return int(any(f.answer == "bad" for f in findings))
