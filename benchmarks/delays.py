"""How late the judge's verdicts are, in readings and in steps, beside a test that is told onset, course and noise.

    python benchmarks/delays.py                   # the tuning families; --held-out: the others alone
    python benchmarks/delays.py --every 10        # every tenth reading alone: logs that are sparse

The test: `benchmarks/backtest/likelihood.py`. Of harmless curves those that the judge itself calls are left out of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from backtest.curves import Curve, read_folder
from backtest.likelihood import Known, Noise, knowable
from backtest.ours import parts_of, said_live
from backtest.scoring import Outcome, onset_of, score

from sentinel.judge.thresholds import Thresholds

HERE = Path(__file__).parent
DEFAULT = (HERE / "public", HERE / "recorded")
IN_TIME_STEPS, IN_TIME_READINGS = 100, 5
"""In time: within the later of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """One divergence."""

    curve: str
    family: str
    log_interval: int
    steps: int | None
    """From the labelled onset to the verdict; None: missed."""

    readings: int | None
    in_time: bool
    known: Known | None
    """As readings after the onset."""


def main() -> int:
    """Replays, compares, prints."""
    asked = _arguments()
    curves = [c for folder in asked.curves or DEFAULT for c in read_folder(folder) if c.held_out == asked.held_out]
    curves = [thinned(c, asked.every) for c in curves]
    outcomes = [score(c, said_live(c, parts_of(c), Thresholds())) for c in curves]
    called = frozenset((o.curve.folder, o.curve.name) for o in outcomes if o.is_harmless and _calls(o))
    noise = None if asked.alone else Noise(curves, called)
    delays = [_delay(o, noise) for o in outcomes if o.is_divergence]
    if asked.json:
        print(json.dumps([_as_json(d) for d in delays]))
        return 0
    text = _header(asked) + "\n".join((*_rows(delays), "", *_summary(delays, outcomes)))
    print(text)
    if asked.results:
        asked.results.write_text(text + "\n", encoding="utf-8")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the held-out families alone, not those for tuning")
    parser.add_argument("--every", type=int, default=1, help="one reading in so many, as of a sparse log")
    parser.add_argument("--curves", type=Path, action="append", help="a folder with an INDEX.csv; may be repeated")
    parser.add_argument("--alone", action="store_true", help="without the test: seconds instead of minutes")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and nothing else")
    parser.add_argument("--results", type=Path, help="also write the tables to this file")
    return parser.parse_args()


def thinned(curve: Curve, every: int) -> Curve:
    """One reading in so many; a curve that then has fewer than 40 readings stays as it is."""
    if every == 1 or curve.log_interval > 1 or len(curve.steps) < 40 * every:
        return curve
    columns = {name: values[::every] for name, values in curve.columns.items()}
    return replace(curve, steps=curve.steps[::every], columns=columns, log_interval=every)


def _calls(outcome: Outcome) -> bool:
    return outcome.verdict_step is not None or outcome.overdue_step is not None


def _delay(outcome: Outcome, noise: Noise | None) -> Delay:
    curve, verdict, onset = outcome.curve, outcome.verdict_step, onset_of(outcome.curve)
    if onset is None:
        raise ValueError(f"{curve.name} has no divergence")
    readings = None if verdict is None else bisect_right(curve.steps, verdict) - bisect_left(curve.steps, onset) - 1
    within = max(IN_TIME_STEPS, IN_TIME_READINGS * curve.log_interval)
    return Delay(
        curve=f"{curve.folder}/{curve.name}",
        family=curve.family,
        log_interval=curve.log_interval,
        steps=outcome.delay_steps,
        readings=readings,
        in_time=outcome.delay_steps is not None and outcome.delay_steps <= within,
        known=None if noise is None else knowable(curve, noise),
    )


def _as_json(delay: Delay) -> dict[str, object]:
    known = delay.known
    tests = {} if known is None else {name: getattr(known, name) for name in Known.__slots__}
    return {name: getattr(delay, name) for name in Delay.__slots__ if name != "known"} | tests


def _rows(delays: Sequence[Delay]) -> Iterable[str]:
    yield f"{'curve':<48}{'interval':>9}{'steps':>8}{'readings':>9}   {'test':>6}{'noise only':>12}"
    for d in sorted(delays, key=lambda d: (_or_last(d.readings), d.curve)):
        tests = (None, None) if d.known is None else (d.known.loss, d.known.noise_only)
        shown = "".join(f"{_or_dash(t):>{width}}" for t, width in zip(tests, (6, 12), strict=True))
        yield f"{d.curve:<48}{d.log_interval:>9}{_or_dash(d.steps):>8}{_or_dash(d.readings):>9}   {shown}"


def _or_last(value: int | None) -> float:
    """Missed ones come last."""
    return float("inf") if value is None else value


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _summary(delays: Sequence[Delay], outcomes: Sequence[Outcome]) -> Iterable[str]:
    found = [d for d in delays if d.readings is not None]
    in_time, harmless = sum(d.in_time for d in found), [o for o in outcomes if o.is_harmless]
    unneeded, overdue = sum(o.unneeded for o in outcomes), sum(o.overdue_step is not None for o in harmless)
    readings, steps = _median(d.readings for d in found), _median(d.steps for d in found)
    yield f"{len(found)} of {len(delays)} found, {in_time} in time (max of 100 steps, 5 readings)"
    yield f"median delay: {_or_dash(readings)} readings, {_or_dash(steps)} steps"
    yield f"{unneeded} unneeded, {overdue} overdue, of {len(harmless)} harmless curves"
    for name in Known.__slots__:
        both = [
            (d.readings, t)
            for d in found
            if d.known and (t := getattr(d.known, name)) is not None and d.readings is not None
        ]
        later = [max(0, ours - test) for ours, test in both]
        capped = f"sum {sum(later)}, median {_or_dash(_median(later))}"
        yield (
            f"{name.replace('_', ' ')}: known of {len(both)}, median {_or_dash(_median(t for _, t in both))} readings, "
            f"ours of the same {_or_dash(_median(r for r, _ in both))}; distance in readings: {capped}"
        )


def _median(values: Iterable[int | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _header(asked: argparse.Namespace) -> str:
    part = "held out" if asked.held_out else "for tuning"
    words = " ".join(a for a in sys.argv[1:] if not a.startswith("/"))
    about = f"{date.today()}, Python {platform.python_version()}, {os.cpu_count()} CPUs; {part}"
    return f"{about}\npython benchmarks/delays.py {words}\n\n"


if __name__ == "__main__":
    sys.exit(main())
