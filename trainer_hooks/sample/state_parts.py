"""The state in its parts, as it travels at a save and at a start: the squares and projections of each layer, the sums
of each rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer_hooks.ranks.frame import SUMS, TOPS
from trainer_hooks.sample.reading import LayerParts, RankReading

MOST_ENTRIES = 512
"""Of the ranks' readings. Neighbours share one where there are more ranks; see `StateLoaded.rank_variance_l1`."""

_OF_RANK = ("variance_l1", "momentum_squares", "parameter_squares")
_RANKS = SUMS // len(_OF_RANK)  # entries of one frame
_LAYOUT = _RANKS * len(_OF_RANK)  # its place behind them

Row = tuple[list[float], list[float]]
"""The numbers of a frame that are added, and those of which the largest is taken."""


def rows_of_parts(read: RankReading | None, parts: LayerParts, *, rank: int, world: int) -> list[Row]:
    """This rank's frames. As many on every rank."""
    rows: list[Row] = [
        (momentum[first : first + TOPS] + parameter[first : first + TOPS], [])
        for momentum, parameter in (parts[:2], parts[2:])
        for first in range(0, len(momentum), TOPS)
    ]
    given = {} if read is None else read
    (entry, place), entries = divmod(rank, _neighbours(world)), _entries(world)
    step = given.get("adam_step")
    tops = [-math.inf] * 2 if step is None else [step, -step]
    for first in range(0, entries, _RANKS):
        sums = [0.0] * SUMS
        sums[_LAYOUT] = given.get("state_layout", math.nan)
        if first <= entry < first + _RANKS:
            at = (entry - first) * len(_OF_RANK)
            sums[at : at + len(_OF_RANK)] = [(1 + place) * given.get(name, 0.0) for name in _OF_RANK]
        rows.append((sums, tops))
    return rows


def parts_of(rows: Sequence[Row], *, layers: int, world: int, with_moments: bool) -> dict[str, object]:
    """The fields of State, from the combined frames over all ranks."""
    frames = -(-layers // TOPS)
    parts: list[list[float]] = [[], [], [], []]  # as LayerParts
    for at, (sums, _) in enumerate(rows[: 2 * frames]):
        first, kind = TOPS * (at % frames), 2 * (at // frames)
        count = min(TOPS, layers - first)
        parts[kind] += sums[:count]
        parts[kind + 1] += sums[count : 2 * count]
    added = [number for sums, _ in rows[2 * frames :] for number in sums[:_LAYOUT]]
    of_ranks = [added[at :: len(_OF_RANK)][: _entries(world)] for at in range(len(_OF_RANK))]
    largest, minus_least = rows[-1][1][:2]
    found: dict[str, object] = {"rank_variance_l1": tuple(of_ranks[0])}
    if math.isfinite(largest):
        found |= {"adam_step": int(largest), "adam_step_least": int(-minus_least)}
    layout = rows[-1][0][_LAYOUT]
    if with_moments and math.isfinite(layout):
        names = ("layer_momentum_projection", "layer_param_projection")
        found |= {"state_layout": int(layout)} | dict(zip(names, map(tuple, parts[2:]), strict=True))
    if with_moments:
        found |= {"layer_momentum_l2": _roots(parts[0]), "layer_param_norm": _roots(parts[1])}
        found |= {"rank_momentum_l2": _roots(of_ranks[1]), "rank_param_norm": _roots(of_ranks[2])}
    return found


def _roots(squares: Sequence[float]) -> tuple[float, ...]:
    return tuple(math.sqrt(square) if square >= 0 else math.nan for square in squares)


def _neighbours(world: int) -> int:
    """Ranks of one entry."""
    return -(-world // MOST_ENTRIES)


def _entries(world: int) -> int:
    return -(-world // _neighbours(world))
