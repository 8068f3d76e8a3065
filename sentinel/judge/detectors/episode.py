"""An episode: the loss has left its band. Whether it has come back, is coming back, or stands."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.judge.noise_band import median, robust_sigma
from sentinel.judge.thresholds import Thresholds

_MEDIAN_ERROR = 1.2533  # Standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)
_SIGNIFICANT = 6.0  # Standard errors that a loss must stand above its level: as many as the deviations of a band
_SIGNIFICANT_AT_LAST = 4.0  # … after three patiences: wandering noise may never reach six
_RECOVERING_FACTOR = 3  # Patiences that an episode is given whose loss is on its way back
_LONG_PATIENCES = 10  # Patiences for which a level that was never shown before may stand, whatever the noise
_LONG_MARKS = 16  # Medians of eight, four samples apart, that must all be above what was ever shown: 68 samples
_RISES = 1.1  # Times the excess at half the age that is rising
_SPARSE_PATIENCES = (
    2  # Patiences that three readings must span to be enough: one may be an outlier, the rest has lasted
)
_STANDING_SAMPLES = 3  # Last losses that must each be above the level for it to stand there
_SAMPLES_TO_DOUBT_BAND = 16  # Losses since the onset before a provisional band can be called wrong


def what_denser_gives(onset: int, step: int, readings: int, patience_steps: int, thresholds: Thresholds) -> str:
    """Where the wait for readings was longer than that for steps; else empty. `onset` is the first step outside."""
    between, known_by = round((step - onset) / max(1, readings - 1)), onset + patience_steps
    enough = max(1, patience_steps // thresholds.patience_samples)
    if between <= enough or known_by + between / 2 >= step:
        return ""
    return f" (of one reading in {between} steps: one in {enough} could have told by step {known_by})"


@dataclass(slots=True, kw_only=True)
class Episode:
    """What is known of it so far. The level, the noise and the edge are those from before it, frozen."""

    onset_range: tuple[int, int]
    level: float  # nats
    sigma: float  # Robust standard deviation of one loss, nats
    upper: float  # The band's edge, nats
    provisional: bool  # Whether the band was: too little was seen before the onset to trust its level to a fraction
    before: int  # Losses that the level was taken from, at most 32
    independence: float  # Independent losses that one of them is worth, at most 1; see NoiseBand
    highest: float = math.inf  # Of the medians of eight of the last 512 losses before it, nats; inf: not known
    usual: Mapping[str, float] = field(default_factory=dict)  # Levels of the signals that may fade: LeadingSignals
    peak: float = -math.inf
    samples: int = 0  # Finite losses since the onset
    outside: int = 0  # Those of them that were above the edge
    back_step: int | None = None  # First step after the last one that was above the edge; None while the newest is
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=8))  # The last finite losses since the onset
    longer: deque[float] = field(default_factory=lambda: deque(maxlen=32))  # As many as the level was taken from
    # (step, median of the recent losses), every fourth sample: whether it is on its way back.
    marks: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=256))
    differences: deque[float] = field(default_factory=lambda: deque(maxlen=16))

    def push(self, step: int, loss: float) -> None:
        if self.recent:
            self.differences.append(loss - self.recent[-1])
        self.recent.append(loss)
        self.longer.append(loss)
        self.samples += 1
        self.peak = max(self.peak, loss)
        if loss > self.upper:
            self.outside += 1
            self.back_step = None
        elif self.back_step is None:
            self.back_step = step
        if self.samples % 4 == 0:
            self.marks.append((step, median(self.recent)))

    def resume(self) -> None:
        """The losses in between were of another kind: whether it has come back is seen from those that follow."""
        self.samples, self.back_step = 0, None
        for seen in (self.recent, self.longer, self.differences, self.marks):
            seen.clear()

    @property
    def left_band(self) -> str:
        return f"the loss left its band ({self.level:.3f} ± {self.sigma:.3f}) at step {self.onset_range[1]}"

    @property
    def waiting(self) -> str:
        return f"{self.left_band}, peak {self.peak:.3f}: waiting to see whether it comes back by itself"

    def denser(self, thresholds: Thresholds, step: int, patience_steps: int) -> str:
        """What a denser log would have given, as the end of a sentence; empty where the readings were dense enough."""
        return what_denser_gives(self.onset_range[1], step, self.samples, patience_steps, thresholds)

    @property
    def stands_at(self) -> float:
        return median(self.recent)

    def has_healed(self, thresholds: Thresholds, widened: float) -> bool:
        """Whether the median of the last 8 is back at the level, or within 3 standard errors of it, as that of the last
        32, which would show an offset that 8 can't. `widened` is a larger tolerance (share of the level) where one is
        in force. After a provisional band: back inside it."""
        if len(self.recent) < (_STANDING_SAMPLES if self.provisional else thresholds.healed_window_samples):
            return False
        back = self.stands_at <= self._back_at(thresholds, widened, len(self.recent))
        if self.provisional or self.stands_at <= self.level:
            return back
        return back and median(self.longer) <= self._back_at(thresholds, widened, len(self.longer))

    def has_lasted(self, thresholds: Thresholds, step: int, patience_steps: int) -> bool:
        """Whether it is as old as that, at the reading nearest to it, and has been seen often enough: three readings
        are, where they span two patiences."""
        since, age = step - self.onset_range[1], step - self.onset_range[0]
        if since >= _SPARSE_PATIENCES * max(patience_steps, thresholds.patience_steps):
            return self.samples >= min(thresholds.patience_samples, _STANDING_SAMPLES)
        between = since / max(1, self.samples - 1)
        return age + between / 2 >= patience_steps and self.samples >= thresholds.patience_samples

    def stands(self, thresholds: Thresholds, step: int, patience_steps: int, widened: float = 0.0) -> bool:
        """Whether the wait is over: it stands above its level, significantly, and is not on its way back. `widened`:
        see has_healed."""
        if not self.has_lasted(thresholds, step, patience_steps):
            return False
        if self._stands_for_long(thresholds, step, patience_steps):
            return True
        age = step - self.onset_range[0]
        share = min(
            1.0, max(0.0, (age / patience_steps - 1) / 2)
        )  # fewer errors from one patience on, fewest from three
        outlasted = age >= thresholds.patience_steps
        if self._standard_errors(outlasted=outlasted) <= _SIGNIFICANT + share * (_SIGNIFICANT_AT_LAST - _SIGNIFICANT):
            return False
        if min(list(self.recent)[-_STANDING_SAMPLES:]) <= self._back_at(thresholds, widened, len(self.recent)):
            return False  # a median of eight is late to see that the last few are back
        return age >= _RECOVERING_FACTOR * patience_steps or not self.on_its_way_back(thresholds, step)

    def _stands_for_long(self, thresholds: Thresholds, step: int, patience_steps: int) -> bool:
        """Whether it has stood for so long above all that the run has shown that the wait ends without significance:
        noise of which 32 losses are one independent sample never reaches that."""
        if len(self.marks) < _LONG_MARKS or math.isinf(self.highest):
            return False
        if step - self.onset_range[0] < _LONG_PATIENCES * max(patience_steps, thresholds.patience_steps):
            return False
        lowest = min(value for _, value in list(self.marks)[-_LONG_MARKS:])
        return lowest > self.highest + thresholds.band_floor * abs(self.level)

    def _standard_errors(self, *, outlasted: bool) -> float:
        """By how many it stands above its level. `outlasted`: once it has outlasted the patience, the slope of a loss
        that moves on is no noise; before, it may be on its way back."""
        usual = median(self.differences) if outlasted and self.differences else 0.0
        noise = max(self.sigma, robust_sigma([abs(d - usual) for d in self.differences]))
        before, since = (max(1.0, n * self.independence) for n in (self.before, len(self.longer)))
        error = _MEDIAN_ERROR * noise * math.sqrt(1 / before + 1 / since)
        excess = median(self.longer) - self.level
        return excess / error if error > 0 else math.copysign(math.inf, excess)

    def band_was_wrong(self, step: int, patience_steps: int) -> bool:
        """Whether a provisional band was wrong: long after, the losses still do not differ from it by their noise."""
        long_after = step - self.onset_range[0] >= 2 * patience_steps and self.samples >= _SAMPLES_TO_DOUBT_BAND
        return self.provisional and long_after and self._standard_errors(outlasted=False) <= _SIGNIFICANT

    def rises(self, step: int) -> bool:
        """Whether the excess has grown by a tenth in the second half of the episode."""
        then = self._excess_at_half(step)
        return then is not None and then > 0 and self.stands_at - self.level > _RISES * then

    def _excess_at_half(self, step: int) -> float | None:
        half = (self.onset_range[1] + step) / 2
        return next((m - self.level for at, m in reversed(self.marks) if at <= half), None)

    def on_its_way_back(self, thresholds: Thresholds, step: int) -> bool:
        """Whether the excess, falling on as it fell in the second half of the episode, is gone at twice its age."""
        then, now = self._excess_at_half(step), self.stands_at - self.level
        if then is None or then <= 0 or now >= then:
            return False
        return now * (now / then) ** 2 <= 2 * (self._back_at(thresholds, 0.0, len(self.recent)) - self.level)

    def _back_at(self, thresholds: Thresholds, widened: float, samples: int) -> float:
        """The highest median of so many samples that counts as back, nats: the band's edge while it is provisional."""
        if self.provisional:
            return self.upper
        standard_error = _MEDIAN_ERROR * self.sigma / math.sqrt(samples)
        return self.level + max(3 * standard_error, max(thresholds.healed_tolerance, widened) * abs(self.level))
