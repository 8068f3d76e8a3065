"""Writes the dashboards, or says which of them is not what the code makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.build.fleet import fleet
from dashboards.build.itself import itself
from dashboards.build.spike_triage import spike_triage

__all__ = ["documents", "main"]

FOLDER = Path(__file__).parents[1]


def documents() -> dict[str, str]:
    """{name of its file: the dashboard as JSON}."""
    made = {"spike-triage.json": spike_triage(), "fleet.json": fleet(), "sentinel-itself.json": itself()}
    return {name: json.dumps(b.build(), cls=JSONEncoder, sort_keys=True, indent=1) + "\n" for name, b in made.items()}


def main(arguments: Sequence[str]) -> int:
    """`--check` writes nothing, and is 1 where a file differs."""
    stale = [name for name, text in documents().items() if _text(name) != text]
    if "--check" in arguments:
        sys.stderr.write("".join(f"dashboards/{name} is not what dashboards/build makes\n" for name in stale))
        return int(bool(stale))
    for name, text in documents().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


def _text(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
