"""What really happened to a curve: with hindsight, against its sibling, by no detector. The rule is in README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recorded.recipe import Recipe

__all__ = ["Label", "label"]

Curve = Mapping[str, Sequence[float | None]]
Values = NDArray[np.float64]

BACK = 0.01
"""A run is back when its last level is at most this share above its sibling's."""

OFFSET = 0.007
"""The same where the batches are large enough to see it: Marin's permanent offset was 0.8 %."""

QUIET = 0.025
"""Batch noise, as a share of the loss, below which OFFSET holds."""

SPIKE, MINOR = 0.05, 0.02
"""What a spike's excess is at least, and a minor one's; and not less than 4 and 2 deviations of the batch noise."""

SLOW = 0.10
"""A run that never rose and ends less than this above its sibling is a slower run, and no more."""

BEHIND = 0.5
"""A run well below its own old level has only lost time, where its sibling stood there so late: the delay beyond the
cause's own steps, as a share of the steps since."""

LEVEL = 50
"""Points that a level is the median of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A row's label, events and confidence, and the numbers that they rest on."""

    label: str
    events: tuple[str, ...] = ()
    confidence: str = "high"
    numbers: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What a person with both curves before them would measure."""

    step: Values
    loss: Values
    excess: Values
    """loss / the sibling's loss - 1, of the same batch."""

    noise: float
    """Standard deviation of the batch noise, as a share of the loss; from the sibling, robust."""

    end: float
    """Median excess of the last tenth (50 points at least): how far above the sibling the run ends."""

    risen: float
    """Level at the end / level before the cause - 1: above or below its own old level. Where the cause is a setting:
    validation loss at the end / its minimum - 1."""

    behind: float
    """How many steps earlier the sibling stood where the run ends, less the steps that the cause lasted, as a share of
    the steps since then."""

    swings: tuple[tuple[int, int, int, float], ...]
    """(first, highest, last point, height) of every stay above the sibling; where the cause is a setting: above the
    validation loss's own minimum, since a slower run is above its sibling all the time."""

    left: int
    """The point from which the run is never back."""


def label(recipe: Recipe, curve: Curve) -> Label:
    """The label of the curve as it was logged."""
    if recipe.sibling() is None:
        return _unharmed(recipe, curve)
    seen = _look(recipe, curve)
    gone = _gone(seen.loss)
    return _judged(recipe, seen) if gone is None else _nan(seen, gone)


def _judged(recipe: Recipe, seen: _Seen) -> Label:
    numbers = {"end_excess": seen.end, "risen": seen.risen, "noise": seen.noise, "behind": seen.behind}
    spiked, events = _events(seen, len(seen.step))
    kind = "spikes_recovered" if spiked else "stable"
    if seen.end <= (OFFSET if seen.noise < QUIET else BACK):
        return Label(label=kind, events=events, numbers=numbers)
    _, before = _events(seen, seen.left)
    top = seen.left + int(np.nanargmax(seen.loss[seen.left :]))
    lasting = f"{seen.step[seen.left]:.0f}-{seen.step[top]:.0f}-{seen.step[-1]:.0f}"
    diverged = (*before, f"diverge:{lasting}")
    if recipe.onset is not None and _heals(seen):
        unsure = (*before, f"ambiguous:{lasting}")
        note = "still on its way back where the log ends"
        return Label(label="ambiguous", events=unsure, confidence="low", numbers=numbers, note=note)
    if seen.risen > max(BACK, 0.3 * seen.noise):
        sure = "high" if seen.risen > max(SPIKE, seen.noise) else "medium"
        return Label(label="diverged", events=diverged, confidence=sure, numbers=numbers)
    stays = recipe.onset is not None and _stays(seen)
    if stays and seen.end > seen.noise:
        note = "an offset that stays"
        return Label(label="diverged", events=diverged, confidence="medium", numbers=numbers, note=note)
    slower = seen.end <= (SLOW if recipe.onset is None else 3 * BACK)
    if not stays and (slower or (seen.risen < -SPIKE and seen.behind < BEHIND)):
        note = "slower than its sibling, below its own old level"
        return Label(label=kind, events=events, confidence="medium", numbers=numbers, note=note)
    note = "an offset within the batch noise" if stays else "below its own old level, far above its sibling"
    if recipe.onset is None:
        note, lasting = "stuck or slow from the start", f"{seen.step[0]:.0f}-{seen.step[0]:.0f}-{seen.step[-1]:.0f}"
    unsure = (*before, f"ambiguous:{lasting}")
    return Label(label="ambiguous", events=unsure, confidence="low", numbers=numbers, note=note)


def _look(recipe: Recipe, curve: Curve) -> _Seen:
    step, loss, reference = (_values(curve, name) for name in ("step", "loss", "reference_loss"))
    excess = loss / reference - 1
    relative = np.diff(reference) / reference[1:]
    noise = float(1.4826 * np.nanmedian(np.abs(relative)) / np.sqrt(2))
    tail = max(50, len(loss) // 10)
    validated = _values(curve, "validation_loss")
    if recipe.onset is None:
        swings, left = _above_minimum(validated)
        level = validated[np.isfinite(validated)]
        behind = 1.0
        last = max(3, len(level) // 10)
        risen = float(np.median(level[-last:]) / level[:-last].min() - 1) if len(level) > last else 0.0
    else:
        start = int(np.searchsorted(step, recipe.onset))
        swings = _above_sibling(excess, max(MINOR, 2 * noise))
        old = float(np.median(loss[max(0, start - LEVEL) : start]))
        risen = float(np.median(loss[-tail:])) / old - 1
        left = _leaving(excess, start, noise)
        stop = max([start, *(int(np.searchsorted(step, a.stop)) for a in recipe.acts if a.stop is not None)])
        behind = _behind(loss[-tail:], reference, start, stop)
    end = float(np.nanmedian(excess[-tail:])) if np.isfinite(excess[-tail:]).any() else np.inf
    return _Seen(
        step=step,
        loss=loss,
        excess=excess,
        noise=noise,
        end=end,
        risen=risen,
        behind=behind,
        swings=swings,
        left=left,
    )


def _behind(last: Values, reference: Values, start: int, stop: int) -> float:
    there = np.flatnonzero(_running(reference, 2 * LEVEL) <= float(np.median(last)))
    middle = len(reference) - len(last) // 2
    return float((middle - there[0] - (stop - start)) / (len(reference) - stop)) if len(there) else 0.0


def _leaving(excess: Values, start: int, noise: float) -> int:
    """The first point of the last stay above the sibling's band; the cause's own, if it shows there within ten."""
    levels = _running(excess, 5)
    tail = max(50, len(excess) // 10)
    last = levels[-tail:]
    end = float(np.nanmedian(last)) if np.isfinite(last).any() else np.inf
    band = min(end / 2, max(BACK, noise / 4))
    at_once = excess[start : start + 10]
    settled = np.isfinite(at_once) & (at_once > band)
    smooth = _running(excess, 25)
    inside = np.flatnonzero(smooth[start:] <= band)
    leaving = start + (int(inside[-1]) + 1 if len(inside) else 0)
    return start if settled.sum() >= 7 and leaving < start + LEVEL else min(leaving, len(excess) - 1)


def _above_sibling(excess: Values, band: float) -> tuple[tuple[int, int, int, float], ...]:
    outside = np.where(np.isfinite(excess), excess, 0.0) > band / 2
    swings = []
    at = 0
    while at < len(outside):
        if not outside[at]:
            at += 1
            continue
        end = at
        while outside[end + 1 : end + 6].any():
            end += 1 + int(np.argmax(outside[end + 1 : end + 6]))
        top = at + int(np.nanargmax(excess[at : end + 1]))
        swings.append((at, top, end, float(excess[top])))
        at = end + 1
    return tuple(swings)


def _above_minimum(validated: Values) -> tuple[tuple[tuple[int, int, int, float], ...], int]:
    """The swings of a validation loss above its own minimum so far, and the point after it was last within BACK."""
    points = np.flatnonzero(np.isfinite(validated))
    if not len(points):
        return (), 0
    level = validated[points]
    over = level / np.minimum.accumulate(level) - 1
    inside = np.flatnonzero(over <= BACK)
    swings = []
    for first, last in zip(inside, [*inside[1:], len(level)], strict=True):
        if last > first + 1:
            top = first + 1 + int(np.argmax(over[first + 1 : last]))
            swings.append((int(points[first]), int(points[top]), int(points[last - 1]), float(over[top])))
    return tuple(swings), int(points[inside[-1]])


def _events(seen: _Seen, until: int) -> tuple[bool, tuple[str, ...]]:
    """Whether there was a spike before the point, and the events there."""
    spike, minor = max(SPIKE, 4 * seen.noise), max(MINOR, 2 * seen.noise)
    named = []
    for first, top, last, height in seen.swings:
        if height >= minor and last < until and (height >= spike or last > first + 2):
            kind = "spike" if height >= spike else "minor"
            named.append(f"{kind}:{seen.step[first]:.0f}-{seen.step[top]:.0f}-{seen.step[last]:.0f}")
    return any(event.startswith("spike") for event in named), tuple(named)


def _stays(seen: _Seen) -> bool:
    """Whether the excess neither shrinks nor grows away from a step that was there at once, at about the old level."""
    after = seen.excess[seen.left :]
    if len(after) < 4 * LEVEL or seen.risen < -3 * BACK:
        return False
    early = float(np.nanmedian(after[LEVEL : 3 * LEVEL]))
    return 0.75 * early <= seen.end <= 1.5 * early


def _heals(seen: _Seen) -> bool:
    """Whether the excess at the end is less than half of that in the middle, above the old level still."""
    after = seen.excess[seen.left :]
    middle = after[len(after) * 2 // 5 : len(after) * 3 // 5]
    return seen.risen > 0 and len(after) > 4 * LEVEL and seen.end < 0.5 * float(np.nanmedian(middle))


def _nan(seen: _Seen, gone: int) -> Label:
    """nan from a point on; where the loss had left for good before, that is the onset."""
    nan = f"nan:{seen.step[gone]:.0f}-{seen.step[gone]:.0f}-{seen.step[-1]:.0f}"
    _, before = _events(seen, min(seen.left, gone))
    if seen.left >= gone - 2:
        return Label(label="nan", events=(*before, nan))
    diverge = f"diverge:{seen.step[seen.left]:.0f}-{seen.step[gone]:.0f}-{seen.step[-1]:.0f}"
    return Label(label="nan", events=(*before, diverge, nan))


def _gone(loss: Values) -> int | None:
    """The first nan after which at least nine in ten are nan; None where there is none, or not at the end."""
    bad = ~np.isfinite(loss)
    if not bad[-5:].all():
        return None
    share = np.cumsum(bad[::-1])[::-1] / np.arange(len(loss), 0, -1)
    return int(np.flatnonzero(bad & (share >= 0.9))[0])


def _unharmed(recipe: Recipe, curve: Curve) -> Label:
    """Nothing was done to it; a planned change that lifts the level is a regime shift."""
    step, loss = _values(curve, "step"), _values(curve, "loss")
    events = []
    for planned in recipe.regime:
        kind, _, at = planned.partition(":")
        first = int(np.searchsorted(step, int(at)))
        if kind not in ("data", "seqlen", "lr", "batch") or first < LEVEL:
            continue
        before, after = loss[first - LEVEL : first], loss[first : first + LEVEL]
        level = float(np.median(before))
        error = 1.25 * 1.4826 * float(np.median(np.abs(before - level))) / level / np.sqrt(LEVEL / 2)
        if float(np.median(after)) / level - 1 > max(MINOR, 3 * error):
            end = min(first + LEVEL, len(step) - 1)
            events.append(f"regime:{at}-{step[first + int(np.argmax(after))]:.0f}-{step[end]:.0f}")
    return Label(label="regime_shift" if events else "stable", events=tuple(events))


def _running(values: Values, width: int) -> Values:
    """Running median, centred, shorter at the ends; where nothing is finite, inf."""
    half = width // 2
    finite = np.where(np.isfinite(values), values, np.inf)
    return np.array([np.median(finite[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def _values(curve: Curve, name: str) -> Values:
    return np.array([np.nan if v is None else v for v in curve[name]], dtype=np.float64)
