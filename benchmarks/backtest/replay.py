"""A peer on a curve, row by row, as it would have seen the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from .curves import Curve
from .peers import PEERS, Peer
from .reading import Reading
from .scoring import Said, Told, stretches

__all__ = ["PATIENCE", "fired", "said_by"]

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


def said_by(name: str, curve: Curve) -> tuple[Said, Said]:
    """What it said when every firing is a verdict, and when only one is that has lasted for PATIENCE rows."""
    make = PEERS[name]
    rows, seconds = fired(curve, make)
    applicable = any(curve.measured(column) for column in make(0).reads)
    known = set(rows)
    lasting = [r for r in rows if all(r - back in known for back in range(PATIENCE))]
    called = tuple((curve.steps[a], curve.steps[b]) for a, b in stretches(rows))

    def said(at: list[int], lasted: int) -> Said:
        return Said(
            detector=name,
            verdicts=tuple(Told(step=curve.steps[r], onset=curve.steps[r - lasted + 1]) for r in at),
            spikes=called,
            applicable=applicable,
            samples=len(curve.steps),
            seconds=seconds,
        )

    return said(rows, 1), said(lasting, PATIENCE)
