"""What the lattice's curves were drawn to be, against what the record says of them.

    python -m tests.judge.lattice_classes [REVISION]

Per class of what was drawn: how many were called divergences in the record, and in that of REVISION; how many of the
calls and silences are right. Only what a judge can be held to: curves whose settings do not change, and stretches above
their course that are clearly shorter or longer than the patience.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from typing import NamedTuple

from tests.judge.lattice_curves import CLIMBS, RECORD, SEEDS, climbs, drawn, recorded, thresholds_of

__all__ = ["Stretch", "calls", "classes", "stretches"]

_CALL = re.compile(r"^divergence \((\d+), (\d+)\) (\d+) (\S+)(?: True .*)?$", re.MULTILINE)
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


def calls(said: str) -> Iterator[tuple[int, int]]:
    """(early end of the onset, verdict step) of each divergence that the record has of one curve, of its first life."""
    once = said.partition("\nagain from")[0]
    for onset, _, verdict, _ in _CALL.findall(once):
        yield int(onset), int(verdict)


def classes(record: dict[int, str]) -> Counter[tuple[str, str]]:
    """(class, right | called though it healed | not called | either) -> stretches; and calls where nothing is above."""
    counts: Counter[tuple[str, str]] = Counter()
    for seed in SEEDS:
        known = stretches(seed)
        if known is None:
            counts["settings change", "not counted"] += 1
            continue
        made = [*calls(record[seed])]
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
    records = {"now": recorded()}
    for revision in islice(sys.argv, 1, None):
        name = f"{revision}:tests/data/{RECORD.name}"
        text = subprocess.run(["git", "show", name], capture_output=True, text=True, check=True).stdout  # noqa: S607
        parts = text.split("== ")[1:]
        records[revision] = {int(part.partition("\n")[0]): "== " + part.rstrip("\n") for part in parts}
    tables = {name: classes(record) for name, record in records.items()}
    print(f"{'':50}" + "".join(f"{name:>12}" for name in tables))
    for key in sorted({key for table in tables.values() for key in table}):
        print(f"{f'{key[0]}: {key[1]}':50}" + "".join(f"{table[key]:>12}" for table in tables.values()))


if __name__ == "__main__":
    main()
