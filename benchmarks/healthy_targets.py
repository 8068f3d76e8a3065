"""Healthy checkpoints that would be refused as a target for their own readings, on the labelled curves: none should be.

Of a curve that is harmless, every step is one at which a checkpoint can stand, but for the spikes (they are counted
apart); of one that diverges, every step before its first onset. Beside it: the steps within divergences that are
refused, and the curves that have any.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.curves import DIVERGED, HARMLESS, Curve, read_folder
from backtest.ours import samples_of

from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.unhealthy_spans import UnhealthySpan, UnhealthySpans

HERE = Path(__file__).parent
DEFAULT = (HERE / "public", HERE / "recorded")
ILL_KINDS = frozenset({"diverge", "nan"})


def spans_of(curve: Curve, thresholds: Thresholds) -> list[tuple[int, UnhealthySpan]]:
    """(attempt, span) of each, as the watch would have them."""
    found = []
    attempt, spans, series = None, UnhealthySpans(thresholds), Series(thresholds)
    for sample in samples_of(curve):
        if sample.attempt != attempt:
            found += [(attempt or 0, span) for span in spans.spans]
            attempt = sample.attempt
            spans, series = UnhealthySpans(thresholds, curve.planned), Series(thresholds, (), curve.planned)
        series.push(sample)
        spans.push(sample, well=series.alarm is None and series.episode is None)
    return [*found, *((attempt or 0, span) for span in spans.spans)]


def counted(curve: Curve, thresholds: Thresholds) -> tuple[Counter[str], list[str]]:
    """Steps by kind, those refused, and the sentences of what was healthy and refused."""
    ill = [e for e in curve.events if e.kind in ILL_KINDS]
    spikes = [e for e in curve.events if e.kind not in ILL_KINDS]
    first = min((e.onset for e in ill), default=None)
    spans = spans_of(curve, thresholds)
    count: Counter[str] = Counter()
    wrong: list[str] = []
    for attempt, step in zip(curve.attempts(), curve.steps, strict=True):
        if first is not None and step >= first:
            kind = "diverged"
        else:
            kind = "spike" if any(e.onset <= step <= e.end for e in spikes) else "healthy"
        count[kind] += 1
        hit = next((s for a, s in spans if a == attempt and s.first_step <= step <= s.last_step), None)
        if hit is not None:
            count[f"{kind} refused"] += 1
            if kind == "healthy":
                wrong.append(f"{curve.name}, step {step}: {hit.reason}")
    return count, wrong


def main() -> int:
    """Prints the table; 1 where a healthy step is refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, action="append", help="a folder with an INDEX.csv; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    asked = parser.parse_args()
    folders = asked.curves or [f for f in DEFAULT if (f / "INDEX.csv").is_file()]
    curves = [c for f in folders for c in read_folder(f) if c.label in DIVERGED | HARMLESS]
    total: Counter[str] = Counter()
    wrong: list[str] = []
    for curve in curves:
        count, sentences = counted(curve, Thresholds())
        total += count
        wrong += sentences
    figures = {k: {"steps": total[k], "refused": total[f"{k} refused"]} for k in ("healthy", "spike", "diverged")}
    if asked.json:
        print(json.dumps({"curves": len(curves), **figures, "wrong": wrong}))
    else:
        for kind, figure in figures.items():
            print(f"{kind:10} {figure['steps']:8} steps, {figure['refused']:6} refused")
        print("\n".join(wrong[:40]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
