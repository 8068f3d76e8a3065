"""Curves for the scoring of detectors."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.backtest.curves import Curve, Event

DIVERGE = Event(kind="diverge", onset=500, peak=520, end=1000)


def curve(label: str, *events: Event, steps: Sequence[int] = range(1, 1001), interval: int = 1) -> Curve:
    return Curve(
        name="a",
        folder="f",
        label=label,
        events=events,
        log_interval=interval,
        short=False,
        held_out=False,
        note="",
        steps=tuple(steps),
        columns={"loss": tuple(2.0 for _ in steps)},
    )
