"""What the lattice's curves were drawn to be, against what the judge says of them.

    python -m tests.judge.lattice_classes

Per class of what was drawn: how many were called divergences, and how many of the calls and silences are right. Only
what a judge can be held to: curves whose settings do not change, and stretches above their course that are clearly
shorter or longer than the patience.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from sentinel.judge.events import EventKind
from tests.judge.lattice_curves import CLIMBS, SEEDS, climbs, drawn, judged, thresholds_of

__all__ = ["Stretch", "calls", "classes", "stretches"]

_CLEARLY = 3  # Times the patience that a stretch lasts which is to be called
_BEFORE = 40  # Losses at its level before it
_CLEAR_SHARE = 0.25  # Share of its course that a stretch is above it which has to be called


class Stretch(NamedTuple):
    """Neighbouring losses that were drawn above their course."""

    what: str  # spike, step, climb, fall
    first_step: int
    last_step: int
    must: bool | None  # Whether it has to be called; None: either may be right


def stretches(seed: int) -> list[Stretch] | None:
    """Of the seed's curve; None where its settings change."""
    return _of_blocks(random.Random(seed)) if seed in CLIMBS else _of_pieces(random.Random(seed))


def _of_pieces(rng: random.Random) -> list[Stretch] | None:
    t = thresholds_of(rng)
    samples, above = drawn(rng)
    if samples[0].seqlen is not None:
        return None
    found, at = [], 0
    for is_above, part in groupby(above, key=lambda share: share > 0):
        heights = list(part)
        first, last, at = samples[at].global_step, samples[at + len(heights) - 1].global_step, at + len(heights)
        steps = last - first
        if not is_above:
            continue
        before = at - len(heights)
        enough = before >= _BEFORE and set(above[before - _BEFORE : before]) == {0.0}
        lasts = steps >= _CLEARLY * t.patience_steps and len(heights) >= max(32, 2 * t.patience_samples)
        must = True if enough and lasts and min(heights[:-8] or [0.0]) > _CLEAR_SHARE else None
        must = False if steps < 0.25 * t.patience_steps else must
        found.append(Stretch(_what(heights, must), first, last, must))
    return found


def _of_blocks(rng: random.Random) -> list[Stretch]:
    made = climbs(rng)
    found, at, t = [], 0, made.thresholds
    for is_above, part in groupby(made.heights, key=lambda height: height > 0):
        heights = list(part)
        first, at = made.interval * (32 * at + 1), at + len(heights)
        last = made.interval * 32 * at
        if not is_above:
            continue
        clear = made.wobbles == 0.0 and made.grain == 0.0 and min(heights) / 64 > 2 * (t.climb_tolerance * 2 + 2**-7)
        must = True if clear and len(heights) >= 4 and last - first >= _CLEARLY * t.patience_steps else None
        found.append(Stretch(_what(heights, must), first, last, must))
    return found


def _what(heights: list[float], must: bool | None) -> str:
    if must is False:
        return "spike"
    return "step" if heights[0] == heights[-1] else "climb" if heights[-1] > heights[0] else "fall"


def calls(seed: int) -> Iterator[tuple[int, int]]:
    """(early end of the onset, verdict step) of each divergence that the judge finds in the curve."""
    for event in judged(seed).events:
        if event.kind is EventKind.DIVERGENCE:
            yield event.onset_range[0], event.verdict_step


def classes() -> Counter[tuple[str, str]]:
    """(class, right | called though it healed | not called | either) -> stretches; and calls where nothing is above."""
    counts: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        known = stretches(seed)
        if known is None:
            counts["settings change", "not counted"] += 1
            continue
        made = [*calls(seed)]
        for one in known:
            called = any(one.first_step <= verdict and onset <= one.last_step for onset, verdict in made)
            right = "either" if one.must is None else "right" if called == one.must else "wrong"
            counts[one.what, f"{right}, {'called' if called else 'not called'}"] += 1
        for onset, verdict in made:
            if not any(one.first_step <= verdict and onset <= one.last_step for one in known):
                counts["nothing above its course", "called"] += 1
    return counts


def main() -> None:
    """The table."""
    for (what, outcome), count in sorted(classes().items()):
        print(f"{f'{what}: {outcome}':50}{count:>12}")


if __name__ == "__main__":
    main()
