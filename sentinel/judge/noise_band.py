"""Signals: one formula each, with its source.

Noise band: level + max(6 sigma, 2 % of the level), also above the height that three lone outliers of the last 1,024
samples reached. Level: min(median of the last 4 block medians, mean of the last 2). sigma = 1.4826 median(|difference
of neighbours|) / sqrt(2), or the wander around the chord if larger; in the first 512 samples, where they fall by
four times the former, around a chord straight in samples^-1/2, if smaller: an early loss bends. The band never learns
from values outside it.

Source: Donoho & Johnstone 1994, 4.2.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

BLOCK = 8  # Samples that are taken in together: a band moves once in so many. Their median has half the noise of one.
MAD_TO_SIGMA = 1.4826  # Median absolute deviation to standard deviation, for normal noise: 1 / Phi^-1(3/4)
_LEVEL_BLOCKS = 4  # Blocks that a level is taken from: 32 samples, short, since an early loss falls fast
_NOISE_BLOCKS = 8  # Blocks that the noise is taken from: 64 differences know their median to about a tenth
_WANDERING_BLOCKS = 12
# Values that the wandering is taken from (96) and how far apart: over longer lags an early loss bends more than it
# wanders.
_WANDERING_LAGS = (8, 16)
_FALL = -0.5  # Power of the place over which an early loss is straight: between the logarithm and the inverse
_FALLS = 4  # Times the neighbours' noise that the values must fall for their bend to be looked for
_WANDERINGS = 2  # Estimates of the wandering whose median is taken: 96 values are few independent ones
_COLD_BLOCKS = 2  # Blocks without which a band is provisional
_COLD_FLOOR = 0.25  # Width of a provisional band (share of its level): a quarter more loss is news after one sample
# The same after a change of the run's settings: at 8 tokens of 128 the noise is four times what it was, and one of the
# first losses is as low by chance as half the next.
_COLD_FLOOR_ANEW = 1.0
_TAIL_BLOCKS = 128  # Blocks that an outlier is remembered for: 1,024 samples; rarer ones are news each time
_TAIL_OUTLIERS = 3  # Outliers of a height within that time that make it part of the noise: one or two are events
_SETTLED_BLOCKS = 64
_NOISE_EVERY_BLOCKS = 8  # Blocks after which a settled band's noise is estimated anew; its level moves with each
_SHOWN_BLOCKS = 64  # Blocks (512 samples) that say how high the signal's medians have been
_LEAST_SHOWN_BLOCKS = 8  # … without which that is unknown
_STOOD_BLOCKS = 16  # Blocks (128 samples) after which a level is one that the signal has stood at
_SQRT_3_2 = math.sqrt(1.5)  # Standard deviation of a chord over that of one value, where they are independent
_MAX_TAIL = 20.0  # No tail is heavier than this: a loss that leaves 120 deviations is news in every run


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two; IndexError for none. statistics.median takes four times as long."""
    ordered = sorted(values)
    n = len(ordered)
    half = n // 2
    return ordered[half] if n % 2 else (ordered[half - 1] + ordered[half]) / 2


def robust_sigma(differences: Sequence[float]) -> float:
    """1.4826 * median(|difference of neighbours|) / sqrt(2), in the signal's unit; 0 where there is none. A falling
    loss does not count its own fall as noise. Source: Donoho & Johnstone 1994, "Ideal spatial adaptation by wavelet
    shrinkage", section 4.2 (finest-scale coefficients)."""
    return MAD_TO_SIGMA * median(differences) / math.sqrt(2) if differences else 0.0


def wandering_sigma(values: Sequence[float], lags: Sequence[int]) -> float:
    """How far a series wanders over each of the lags, the farthest; as a sigma.

    d = x(i) - (x(i - lag) + x(i + lag)) / 2, (p75 - p50 of d) / 0.6745 / sqrt(1.5): the chord takes out the fall, and
    the median of d how the fall slows down. Neighbours of an autocorrelated series (a smoothed loss, a data order with
    themes) differ by less than the series wanders. 0 where there are fewer than four chords of the shortest lag.
    """
    sigmas: list[float] = []
    for lag in lags:
        if len(values) < 2 * lag + 4:
            continue
        every = lag // 4 or 1  # neighbouring chords of a long lag say the same
        triples = zip(values[::every], values[lag::every], values[2 * lag :: every])  # noqa: B905 - the last is shortest
        chords = sorted([middle - (left + right) * 0.5 for left, middle, right in triples])
        n = len(chords)
        sigmas.append((chords[(3 * n) // 4] - chords[n // 2]) / 0.6745 / _SQRT_3_2)
    return max(sigmas, default=0.0)


def bent_wandering_sigma(values: Sequence[float], lags: Sequence[int], first: int) -> float:
    """`wandering_sigma` of a series that falls as a power of its place; `first`: that of the first value, from 1 on.

    The chord is straight over place^-1/2: between two ends far apart in the fall a loss of that form lies on it, and
    far below a straight chord, by as much as 96 readings of a sparse log fall. Each chord's own sigma divides it, since
    its nearer end counts more. 0 where there are fewer than four chords of the shortest lag.
    """
    sigmas: list[float] = []
    for lag in lags:
        if len(values) < 2 * lag + 4:
            continue
        chords = []
        for at in range(lag, len(values) - lag, lag // 4 or 1):
            left, middle, right = ((first + place) ** _FALL for place in (at - lag, at, at + lag))
            share = (left - middle) / (left - right)  # of the right end
            chord = values[at] - share * values[at + lag] - (1 - share) * values[at - lag]
            chords.append(chord / math.sqrt(1 + share**2 + (1 - share) ** 2))
        chords.sort()
        n = len(chords)
        sigmas.append((chords[(3 * n) // 4] - chords[n // 2]) / 0.6745)
    return max(sigmas, default=0.0)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    mean_log_step: float
    mean_log_loss: float
    slope: float

    @classmethod
    def through(cls, steps: Sequence[int], losses: Sequence[float]) -> PowerLaw:
        xs = array("d", (math.log(max(1, at)) for at in steps))
        ys = array("d", (math.log(loss) if loss > 0 else 0.0 for loss in losses))
        mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
        away = array("d", (x - mean_x for x in xs))
        spread = math.fsum(x**2 for x in away)
        slope = math.fsum(x * (y - mean_y) for x, y in zip(away, ys, strict=True)) / spread if spread else 0.0
        return cls(mean_x, mean_y, slope)

    def loss(self, step: int) -> float:
        return math.exp(self.mean_log_loss + self.slope * (math.log(max(1, step)) - self.mean_log_step))


class NoiseBand:
    """Where a signal's own noise lets it be, by the formula above. upper = level + max(k * tail * sigma, floor *
    |level|). sigma is `robust_sigma` over 8 blocks or, if larger, `wandering_sigma` over 12: for independent noise they
    are the same. tail is 1, or the height of the outliers (in k sigma): a run with heavy tails stops calling each of
    them a spike."""

    def __init__(self, *, sigmas: float, floor: float) -> None:
        self._sigmas, self._floor, self._cold_floor = sigmas, floor, _COLD_FLOOR
        self._outliers: deque[tuple[int, float]] = deque(maxlen=64)
        self._tail = 1.0
        self._learnt = 0
        self.newest = math.nan  # The median of the newest block that was learned; nan before the first, and taken once
        self.clear()

    def clear(self) -> None:
        """Forgets everything but the outliers: what comes is not comparable with what was."""
        self._levels: deque[float] = deque(maxlen=_LEVEL_BLOCKS)
        self._values: deque[Sequence[float]] = deque(maxlen=_WANDERING_BLOCKS)
        self._wandering: deque[float] = deque(maxlen=_WANDERINGS)
        self._shown: deque[float] = deque(maxlen=_SHOWN_BLOCKS)
        self._blocks = 0
        self.ready = False  # Whether enough was seen for the band to be more than provisional
        self.level = math.nan  # In the signal's unit; nan before the first value
        self.sigma = 0.0  # Robust standard deviation of one value around its trend, in the signal's unit
        self.lowest = math.nan  # The lowest level since `settled` was called: a wider tolerance is measured from it
        self.upper = math.inf  # The band's upper edge, in the signal's unit; inf before the first value
        self.neighbours = 0.0  # `robust_sigma` of neighbouring values, in the signal's unit: the independent noise
        self.independence = 1.0  # Independent values that one is worth: below 1 where the series wanders

    def begun_anew(self) -> NoiseBand:
        """Another one, that knows the outliers alone: how heavy the tails are does not change with the level."""
        new = NoiseBand(sigmas=self._sigmas, floor=self._floor)
        new._cold_floor = _COLD_FLOOR_ANEW
        new._outliers.extend(self._outliers)
        new._tail = self._tail
        new._learnt = self._learnt
        return new

    def learn(self, values: Sequence[float], middle: float | None = None) -> bool:
        """Takes a block's values that stayed inside, in order, and their median where it is known already. Whether it
        did: half a block or less teaches nothing."""
        if len(values) <= BLOCK // 2:
            return False
        levels = self._levels
        newest = self.newest = median(values) if middle is None else middle
        before = levels[-1] if levels else newest
        levels.append(newest)
        self._shown.append(newest)
        self._values.append(values)
        self.level = level = min(median(levels), (newest + before) / 2)
        if not self.lowest <= level:  # nan: the first
            self.lowest = level
        every = 1 if self._blocks < _NOISE_BLOCKS else 4 if self._blocks < _SETTLED_BLOCKS else _NOISE_EVERY_BLOCKS
        if self._blocks % every == 0:
            self.sigma = self._noise_of_one()
        self._blocks += 1
        self.ready = self._blocks >= _COLD_BLOCKS
        if self._outliers and self._outliers[0][0] < self._learnt - _TAIL_BLOCKS:
            self._forget_outliers()
        self._learnt += 1
        self.upper = self.edge()
        return True

    def _forget_outliers(self) -> None:
        while self._outliers and self._outliers[0][0] < self._learnt - _TAIL_BLOCKS:
            self._outliers.popleft()
        self._tail = self._tail_of_outliers()

    def _noise_of_one(self) -> float:
        blocks = list(self._values)
        neighbours = robust_sigma([abs(b - a) for block in blocks[-_NOISE_BLOCKS:] for a, b in pairwise(block)])
        self.neighbours = neighbours
        self._wandering.append(self._wander(list(chain.from_iterable(blocks)), neighbours))
        sigma = max(neighbours, median(self._wandering))
        self.independence = (neighbours / sigma) ** 2 if sigma > 0 else 1.0
        return sigma

    def _wander(self, values: Sequence[float], neighbours: float) -> float:
        """Over the straight chord; in the first 512 values, where these fall by far more than their noise, over the
        bent one if it is less: such a fall may be all that the straight chord shows."""
        straight = wandering_sigma(values, _WANDERING_LAGS)
        if straight <= neighbours or self._blocks >= _SETTLED_BLOCKS:
            return straight
        quarter = len(values) // 4
        if median(values[:quarter]) - median(values[-quarter:]) <= _FALLS * neighbours:
            return straight
        first = max(1, (self._blocks + 1) * BLOCK - len(values) + 1)
        return min(straight, bent_wandering_sigma(values, _WANDERING_LAGS, first))

    @property
    def highest(self) -> float:
        """The highest median of a block among the last 64 that were learned; inf before there are eight."""
        return max(self._shown) if len(self._shown) >= _LEAST_SHOWN_BLOCKS else math.inf

    def has_stood(self, height: float) -> bool:
        """Whether no median of the last 16 blocks was so far above the level: it is where the signal was for long."""
        last = list(self._shown)[-_STOOD_BLOCKS:]
        return len(last) == _STOOD_BLOCKS and max(last) < self.level + height

    @property
    def falling(self) -> float:
        """How much a block's median falls below the one before, as a rule, in the signal's unit; 0: it does not."""
        return max(0.0, median([a - b for a, b in pairwise(self._levels)])) if len(self._levels) > 1 else 0.0

    def glimpse(self, values: Sequence[float]) -> None:
        """While the band is provisional: where it is by the block that is not whole yet."""
        if not self._blocks:
            self.level = median(values)
            self.sigma = robust_sigma([abs(b - a) for a, b in pairwise(values)])
            self.upper = self.edge()

    def settled(self) -> None:
        self.lowest = self.level

    def edge(self, widened: float = 0.0) -> float:
        """The upper edge; or where that is higher, so far (share of it) above the lowest level since `settled`. From
        the lowest, not from the level of now: that would let a loss climb by the whole tolerance in each block. inf
        before the first value, and where the band is turned off (inf sigmas: times no noise that would be nan)."""
        level, sigmas = self.level, self._sigmas
        if level != level or sigmas == math.inf:  # nan
            return math.inf
        floor = self._floor if self.ready else max(self._floor, self._cold_floor)
        own = level + max(sigmas * self._tail * self.sigma, floor * abs(level))
        if not widened and not self.lowest > level:
            return own
        return max(own, self._above_lowest(widened))

    def _above_lowest(self, widened: float) -> float:
        lowest = self.level if math.isnan(self.lowest) else self.lowest
        return lowest + widened * abs(lowest)

    def stands_out(self, middle: float, widened: float) -> bool:
        """Whether the median of a whole block stands above the level by half of what one value would have to."""
        if not self.ready or middle <= self.level:
            return False
        height = max(self._sigmas / 2 * self.sigma, self._floor * abs(self.level))
        return middle > max(self.level + height, self._above_lowest(widened))

    def outlier(self, value: float) -> None:
        """Takes a value that was outside and alone: with two others that high, it is part of the noise."""
        if self.sigma > 0:
            self._outliers.append((self._learnt, (value - self.level) / (self._sigmas * self.sigma)))
            self._tail = self._tail_of_outliers()
            self.upper = self.edge()

    def _tail_of_outliers(self) -> float:
        if len(self._outliers) < _TAIL_OUTLIERS:
            return 1.0
        heights = sorted((height for _, height in self._outliers), reverse=True)
        return min(_MAX_TAIL, max(1.0, heights[_TAIL_OUTLIERS - 1]))
