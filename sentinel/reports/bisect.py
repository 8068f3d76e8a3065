"""What a bisect has found, as a person reads it: the command's output, a section of the chronicle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sentinel import bounded
from sentinel.lab.bisect.bisect import REPORT
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.texts import markdown

_KEYS = frozenset({"incident", "reason", "repeats", "probes", "ranked", "not_tried", "stopped", "over"})


def reports_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Incident -> the report of its bisect; those that can't be read are left out."""
    found = {}
    for path in sorted(folder.glob(f"*/{REPORT}")):
        with contextlib.suppress(OSError, LineError):
            report = bounded.read_record(path, dict)
            if report.keys() >= _KEYS:
                found[path.parent.name] = report
    return found


def lines_of(report: Mapping[str, Any]) -> list[str]:
    lines = [f"{report['incident']}: {report['reason']}", f"  {report['repeats']}"]
    for probe in report["probes"]:
        took = f"{probe['steps']} steps, {probe['seconds']:.0f} s"
        lines.append(f"  {probe['name']}: {probe['outcome']} ({probe['change']}; {took}; {probe['why']})")
    for place, suspect in enumerate(report["ranked"], 1):
        lines.append(f"{place}. {suspect['cause']} ({suspect['sure']}): {suspect['why']}")
        if suspect["rung"]:
            keys = "; ".join(f"{key} = {dump_json(value)}" for key, value in suspect["rung"].items())
            lines.append(f"   the rung that follows: {keys}")
    if not report["ranked"]:
        lines.append("no probe points to a cause")
    left = dict[str, list[str]]()
    for name, why in report["not_tried"]:
        left.setdefault(why, []).append(name)
    lines += [f"not tried: {', '.join(names)}: {why}" for why, names in left.items()]
    return lines + ([f"stopped: {report['stopped']}"] if report["stopped"] else [])


def chapter(report: Mapping[str, Any]) -> Iterator[str]:
    """The same in Markdown."""
    yield "### Why it diverged"
    yield ""
    if not report["over"]:
        yield "The bisect has not come to its end."
        yield ""
    for line in lines_of(report):
        yield f"- {markdown(line.strip())}"
    yield ""
