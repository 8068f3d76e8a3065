"""Slow climbs and permanent offsets, at every time scale: means of longer and longer blocks against their best.

Means of 32, 128, 512 … samples: three blocks in a row above the best by 6 + m sigma and by 0.5 %, for the patience. m =
-Phi^-1(1 / sqrt(n)): how low the best of n blocks is by chance. The finest blocks are also counted back from the newest
loss; two of them, by 3 + m sigma and for half the patience, are enough where another signal agrees or an early warning
rests on more than the loss. Where eight losses span 28 steps or more, medians of eight are a scale too: four in a row.
The onset is that of a spike in the climb, or of one that was over less than a patience before it. The alarm ends where
the last 32 losses are half-way back from the edge.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import NormalDist

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.noise_band import BLOCK, wandering_sigma

_FINEST = 4 * BLOCK  # Samples of the finest scale's blocks: below it the noise band sees a rise sooner
_COARSE_STEPS = 28  # Steps that eight losses span at the least where medians of eight are a scale of their own
_GROWTH = 4  # Each scale's blocks are so many of the one's before: a mean of four has half the noise
_MEDIAN_ERROR = 1.2533  # Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)
_SCALES = 8  # 32 … 524,288 samples
_BLOCKS_ABOVE = 3  # Blocks in a row that must stand above: a climb has been seen three times
_LAGS = (1, 4)  # Blocks that the noise is looked for over; the longer lag not in the first 24, where the loss bends
_NOISE_BLOCKS = 24  # Blocks that a scale's noise is taken from: more would reach into the steep fall of the beginning
# Until a scale has so many, the noise of the finer one stands in: that is larger where the noise is independent, so
# nothing is called too early.
_ENOUGH_BLOCKS = 12
_NORMAL = NormalDist()
# … where another signal has left its band meanwhile or an early warning rests on one; and half the patience
_BLOCKS_ABOVE_AGREED = 2
_SIGMAS_AGREED = 0.5  # Share of the climb's sigmas that is enough then, at the finest scale
_BLOCKS_ABOVE_COARSE = 4
_NEARLY = 0.9  # Share of the patience that the blocks above must span: three of 32 samples are 95 steps
_STILL_THERE = 0.7  # Share of the largest excess that the newest block must have: less is on its way back
_RECOVERING_FACTOR = 3  # Patiences that a climb is given whose blocks are on their way back


class SlowClimb(Detector):
    """Block means at 32, 128, 512 … samples, from medians of 8, so that single outliers do not count.

    best = the smallest mean that two neighbouring blocks held; sigma = `wandering_sigma` of the blocks that did not
    climb: it has the autocorrelation of the loss in it, which a standard error of independent samples has not.
    A climb: three blocks in a row above best + max((k + luck) sigma, tolerance * |best|), none of whose quarters was
    back at the best (spikes in a row are), for at least the patience. luck = -Phi^-1(1 / sqrt(n)) for a loss that has
    been about as low for n blocks: the larger of two neighbours is that low, once in n, by chance.
    """

    per_settings = True

    def reset(self, why: Reset) -> None:
        if why is Reset.LEVEL:
            self._forget()

    def _forget(self) -> None:
        self._scales: list[_Scale] = []
        self._coarse = _Scale(BLOCK)
        self._waiting: list[list[_Mean]] = [[]]
        self._last: deque[_Mean] = deque(maxlen=_GROWTH * _BLOCKS_ABOVE)
        self._medians: deque[float] = deque(maxlen=_NOISE_BLOCKS)
        self._rising = False
        self._back_at: float | None = None  # Half-way back from the edge that was climbed over, nats

    def learn(self, block: Block, known: Known) -> None:
        """Nothing is learned from a loss that is outside its band or above its best."""
        past = known.baseline
        if known.band_paused or known.drop_lasts:
            return
        learns = past.episode is None
        if learns and not self._rising:
            self._medians.append(block.median)
        self._last.append((block.median, block.first_step, block.last_step))
        if block.last_step - block.first_step >= _COARSE_STEPS:
            self._take_coarse(block, known, learns)
        self._push(self._last[-1], known, learns)
        if not self._waiting[0]:  # the finest scale has taken it
            self._rising = past.climbing = any(scale.above for scale in self._scales)
            past.above_best = self._scales[0].excess()

    def _take_coarse(self, block: Block, known: Known, learns: bool) -> None:
        noise = _MEDIAN_ERROR * known.baseline.band.neighbours / math.sqrt(BLOCK)
        finer = noise if len(self._medians) >= _ENOUGH_BLOCKS else math.inf
        self._coarse.push(self._last[-1], block.median, finer, known, learns=learns)

    def _push(self, block: _Mean, known: Known, learns: bool) -> None:
        finer: float | None = None
        for level in range(_SCALES):
            waiting = self._waiting[level]
            waiting.append(block)
            if len(waiting) < _GROWTH:
                return
            lowest = min(waiting)[0]
            mean = math.fsum(value for value, _, _ in waiting) / len(waiting)
            block = (mean, waiting[0][1], waiting[-1][2])
            waiting.clear()
            if level == len(self._scales):
                self._scales.append(_Scale(_FINEST * _GROWTH**level))
                self._waiting.append([])
            if finer is None:
                noise = known.baseline.band.neighbours
                finer = max(_wandering(self._medians, math.inf), _MEDIAN_ERROR * noise / math.sqrt(BLOCK))
            scale = self._scales[level]
            scale.push(block, lowest, finer, known, learns=learns)
            finer = scale.sigma

    def check(self, block: Block, known: Known) -> Finding | None:
        episode = known.baseline.episode
        if not self._scales or block.median <= known.baseline.ceiling:
            return None
        if episode is not None and block.last_step - episode.onset_range[0] < known.patience_steps:
            return None
        if not self._rising and not self._coarse.above and not self._newest_above(known):
            return None
        climb = next((scale for scale in (*self._scales, self._coarse) if self._climbs(scale, block, known)), None)
        if climb is None:
            return None
        self._rising = True
        self._back_at = climb.half_way
        reason = (
            f"{climb.samples}-sample means of the loss have stood at {climb.lowest_above:.3f} or above since step "
            f"{climb.onset_range[1]}: the best mean before is {climb.best:.3f} ± {climb.sigma:.3f}, "
            "and it does not come back"
        )
        return Finding(onset_range=self._onset(climb.onset_range, known), reason=reason)

    def _newest_above(self, known: Known) -> bool:
        """Whether the mean of the last 32 losses may be above at the finest scale: asked of each block, so cheap."""
        last, finest = self._last, self._scales[0]
        if len(last) < _GROWTH:
            return False
        newest = (last[-1][0] + last[-2][0] + last[-3][0] + last[-4][0]) / _GROWTH
        return newest > finest.agreed_edge and (newest > finest.edge or known.leading.moved or known.early.agrees)

    def began(self, known: Known) -> tuple[int, int] | None:
        """The nan agrees that the loss climbed, and nothing is waited for: blocks above by 3 + m sigma are enough."""
        finest = self._last_of_finest(_BLOCKS_ABOVE_AGREED)
        if self._scales and len(finest) == _GROWTH * _BLOCKS_ABOVE_AGREED:
            self._scales[0].slide(finest, _BLOCKS_ABOVE_AGREED, self._scales[0].agreed_edge)
        rise = next((rise for scale in (*self._scales, self._coarse) if (rise := scale.rise) is not None), None)
        return None if rise is None else self._onset(rise, known)

    def _onset(self, climb: tuple[int, int], known: Known) -> tuple[int, int]:
        """Of the climb, or of the spike that it began with: one in it, or over less than a patience before it. How low
        the loss was in between is not known better than its noise."""
        early, late = climb
        episode, near = known.baseline.episode, early - known.thresholds.patience_steps
        spikes = [onset for onset, end in known.findings.healed if onset[1] <= late and near < end]
        if episode is not None and episode.onset_range[1] <= late:
            spikes.append(episode.onset_range)
        return min(spikes, default=climb)

    def _last_of_finest(self, blocks: int) -> list[_Mean]:
        return list(self._last)[-_GROWTH * blocks :]

    def _climbs(self, scale: _Scale, block: Block, known: Known) -> bool:
        """Fewer blocks are enough where another signal agrees; the finest are counted back from the newest loss too."""
        finest = scale.samples == _FINEST
        if not scale.above and not finest:
            return False
        since = scale.onset_range if scale.above else (self._last[-_GROWTH][1], block.last_step)
        samples = max(1, scale.above) * scale.samples
        agreed = known.early.agrees or known.leading.agree(since, block.last_step, samples)
        share, blocks = (0.5, _BLOCKS_ABOVE_AGREED) if agreed else (1.0, _BLOCKS_ABOVE)
        if scale is self._coarse:  # medians of eight follow a wandering loss more closely
            blocks = _BLOCKS_ABOVE_COARSE
        if finest:
            scale.slide(self._last_of_finest(blocks), blocks, scale.agreed_edge if agreed else scale.edge)
        return scale.climbs_for(share * known.thresholds.patience_steps, block.median, blocks)

    def persists(self, block: Block) -> bool:
        """Until the last 32 losses are half-way back: at the edge itself the alarm of a loss that wavers would flap. A
        longer block that has the end of another detector's alarm in it is no climb any more, once they are."""
        last = list(self._last)[-_GROWTH:]
        newest = math.fsum(value for value, _, _ in last) / max(1, len(last))
        if self._back_at is not None:
            if newest <= self._back_at:
                self._back_at = None
            return self._rising or self._back_at is not None
        half_way = self._scales[0].half_way if self._scales else None
        return self._rising and (half_way is None or newest > half_way)


_Mean = tuple[float, int, int]  # Mean or median in nats, first step, last step


class _Scale:
    def __init__(self, samples: int) -> None:
        self.above = 0
        self.sigma = math.inf
        self.samples = samples  # Of one block
        self.best: float | None = None  # The best mean of two neighbouring blocks, nats
        self._blocks_at_best = 1
        self._near_best_step: int | None = None
        self._since = self._since_until = self._until = 0
        self.edge = self.agreed_edge = math.inf
        self._latest = 0.0
        self._rise: tuple[int, int] | None = None  # Onset by the newest block, above by the agreed edge
        self.lowest_above, self._highest_above = math.inf, -math.inf
        self._last: float | None = None
        self._values: deque[float] = deque(maxlen=_NOISE_BLOCKS)

    def push(self, block: _Mean, lowest: float, finer: float, known: Known, *, learns: bool) -> None:
        value, first_step, self._until = block
        sigmas, tolerance = known.thresholds.climb_sigmas, max(known.thresholds.climb_tolerance, known.regime.widened)
        self._latest = value
        self.sigma = max(_wandering(self._values, finer), finer / math.sqrt(_GROWTH))  # as if independent, at the least
        best, self._rise = self.best, None
        luck = max(0.0, -_NORMAL.inv_cdf(self._blocks_at_best**-0.5)) if self._blocks_at_best > 1 else 0.0
        noise = (sigmas + luck) * self.sigma
        if best is not None:
            least = tolerance * abs(best)
            self.edge = best + max(noise, least)
            self.agreed_edge = best + max((_SIGMAS_AGREED * sigmas + luck) * self.sigma, least)
        if best is not None and lowest > best and value > self.edge:
            if not self.above:
                self._since, self._since_until = first_step, self._until
            self.lowest_above = min(self.lowest_above, value) if self.above else value
            self._highest_above = max(self._highest_above, value) if self.above else value
            self.above += 1
            return
        self.above = 0
        if best is not None and lowest > best and value > self.agreed_edge:
            self._rise = self._early(first_step), self._until
        if not learns:
            return
        if self._last is not None:
            best_of_two = max(value, self._last)  # twice in a row: a single low block is luck
            self._blocks_at_best = 1 if best is None or best_of_two < best - self.sigma else self._blocks_at_best + 1
            self.best = best = best_of_two if best is None else min(best, best_of_two)
        self._last = value
        if best is None or value <= best + noise or lowest <= best:  # else only the tolerance calls it no climb
            self._values.append(value)
        if best is None or value <= best + 2 * self.sigma:
            self._near_best_step = self._until

    def is_above(self, part: Sequence[_Mean], edge: float) -> bool:
        """Whether a block of these quarters is above."""
        if self.best is None or min(part)[0] <= self.best:
            return False
        return math.fsum(value for value, _, _ in part) / len(part) > edge

    def slide(self, last: Sequence[_Mean], blocks: int, edge: float) -> None:
        """Takes the last blocks above, wherever they begin, where fewer are above as they were cut."""
        parts = [last[at : at + _GROWTH] for at in range(0, len(last), _GROWTH)]
        if self.above >= blocks or len(last) < blocks * _GROWTH or not all(self.is_above(part, edge) for part in parts):
            return
        means = [math.fsum(value for value, _, _ in part) / len(part) for part in parts]
        self.above, self._latest, self._until = blocks, means[-1], last[-1][2]
        self._since, self._since_until = parts[0][0][1], parts[0][-1][2]
        self.lowest_above, self._highest_above = min(means), max(means)

    def climbs_for(self, patience_steps: float, newest: float, blocks: int) -> bool:
        """`newest` is the median of the last 8 losses: one that is half-way back to the best is no climb any more."""
        age = self._until - self._since
        if self.above < blocks or age < _NEARLY * patience_steps or self.best is None:
            return False
        if newest < (self.best + self.lowest_above) / 2:
            return False
        falling = self._latest - self.best < _STILL_THERE * (self._highest_above - self.best)
        return not falling or age >= _RECOVERING_FACTOR * patience_steps

    @property
    def half_way(self) -> float | None:
        return None if self.best is None else (self.best + min(self.edge, self.lowest_above)) / 2

    def excess(self) -> float:
        return (self._latest - self.best) / abs(self.best) if self.best else 0.0

    @property
    def onset_range(self) -> tuple[int, int]:
        """After the last block that was as good as the best, but for noise; and where the first that was not ended."""
        return self._early(self._since), self._since_until

    @property
    def rise(self) -> tuple[int, int] | None:
        """The onset of a climb, or of a newest block that is above by the agreed edge."""
        return self.onset_range if self.above else self._rise

    def _early(self, since: int) -> int:
        return since if self._near_best_step is None else min(self._near_best_step + 1, since)


def _wandering(values: deque[float], otherwise: float) -> float:
    n = len(values)
    if n < _ENOUGH_BLOCKS:
        return otherwise
    return wandering_sigma(list(values), _LAGS if n == _NOISE_BLOCKS else _LAGS[:1])
