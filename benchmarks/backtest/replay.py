"""A peer on a curve, row by row, as it would have seen the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .curves import Curve
from .peers import PEERS, Peer
from .reading import Reading
from .scoring import Said, Told, stretches
from .tuned import TUNED, with_threshold

__all__ = ["PATIENCE", "fired", "lasting", "said_by", "said_with", "tuned_by"]

PATIENCE = 3
"""Rows in a row that a peer has to fire in, in the second reading, before that is its verdict."""


def fired(curve: Curve, make: Callable[[int], Peer]) -> tuple[list[int], float]:
    """The rows at which it fires, and its seconds. A new attempt has a new peer, unless its state is kept."""
    peer = make(len(curve.steps))
    attempts = curve.attempts()
    norms = curve.columns.get("grad_norm") or (None,) * len(curve.steps)
    rows, seconds = [], 0.0
    for i, (loss, norm) in enumerate(zip(curve.losses, norms, strict=True)):
        if i and attempts[i] != attempts[i - 1] and not peer.survives_restart:
            peer = make(len(curve.steps))
        reading = Reading(loss, norm)
        began = time.perf_counter()
        fires = peer.push(reading)
        seconds += time.perf_counter() - began
        if fires:
            rows.append(i)
    return rows, seconds


def tuned_by(name: str, curve: Curve) -> Said:
    """What it said with the threshold and the patience that were best on the tuning part."""
    attribute, value, patience = TUNED[name]
    return said_with(name, curve, with_threshold(name, attribute, value), (patience,))[0]


def said_by(name: str, curve: Curve) -> tuple[Said, Said]:
    """What it said when every firing is a verdict, and when only one is that has lasted for PATIENCE rows."""
    at_once, lasted = said_with(name, curve, PEERS[name], (1, PATIENCE))
    return at_once, lasted


def said_with(name: str, curve: Curve, make: Callable[[int], Peer], patiences: Sequence[int]) -> tuple[Said, ...]:
    """For each patience: when so many firings in a row are a verdict."""
    rows, seconds = fired(curve, make)
    applicable = any(curve.measured(column) for column in make(0).reads)
    return tuple(
        Said(
            detector=name,
            verdicts=tuple(Told(step=curve.steps[r], onset=curve.steps[r - n + 1]) for r in lasting(rows, n)),
            spikes=tuple((curve.steps[a], curve.steps[b]) for a, b in stretches(rows)),
            applicable=applicable,
            samples=len(curve.steps),
            seconds=seconds,
        )
        for n in patiences
    )


def lasting(rows: Sequence[int], patience: int) -> list[int]:
    """The rows that end so many firings in a row."""
    found, run = [], 0
    for i, row in enumerate(rows):
        run = run + 1 if i and row == rows[i - 1] + 1 else 1
        if run >= patience:
            found.append(row)
    return found
