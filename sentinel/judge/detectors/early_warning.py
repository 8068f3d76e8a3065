"""Early warning: signals that rise together against their own trends while the loss is inside its band. It has no
findings and never raises the alarm: a checkpoint is pinned and a save is asked for, and no more.

Every 16 samples each signal gives x, the log of the mean of two blocks' medians. Its trend is a running centre and a
running size of the differences of neighbours, both clipped, so that one outlier moves them little; z = (x - centre) /
size, the smaller of the last two. A signal scores (z / `_RISES`)², 4 at most. 4 together are a warning: two signals
that rise clearly, or one that rises far. Memory and time for a sample do not grow with the samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.noise_band import BLOCK, median
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds

# z at which a signal scores 1. Chosen on the tuning settings of benchmarks/early_warning.py alone. adam_variance_l1 is
# not here: it foresaw nothing there. The spread over ranks is not: no recorded run has it before a divergence.
_RISES = {"loss": 0.5, "grad_norm": 4.0, "adam_variance_max": 4.0, "update_norm": 2.0}
_LEAST_SIZE = {"loss": 0.008}  # Least size of a difference (log); of the other signals `_LEAST_OTHER`
_LEAST_OTHER = 0.03
_MOST_OF_ONE = 2.0  # z / _RISES is cut here: one signal alone warns where it reaches this
_WARNS = 4.0
# An LR that rises to where it has never been while the loss has stopped falling: so far above its own trend (log), and
# this z of the loss. A warmup that does good has a loss that falls.
_LR_ABOVE, _LOSS_STOPS, _LR_SCORES = 0.1, -2.0, 4.0
_SCALE_SCORES = 2.0  # The loss scale has collapsed: see LeadingSignals
_INTERVAL_BLOCKS = 2
_MEMORY = 24  # Intervals that a trend reaches back: 384 samples
_LEAST_INTERVALS = 6  # Before them a trend is not known
_CLIP = 4.0
_PASSES_SAMPLES = 256  # Without a sign for so long, a warning has passed
_KEPT = 64  # Warnings that are remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyWarning:
    since_step: int  # Where the rise began to be seen: a checkpoint from before it is older than what is warned of
    step: int  # The step at which it was known
    signals: tuple[str, ...]  # What rose, by what it scored; lr: it rises and the loss has stopped falling
    end_step: int | None = None  # Where it had passed; None while it lasts

    @property
    def reason(self) -> str:
        rises = [name for name in self.signals if name not in ("lr", "loss_scale")]
        said = [f"{' and '.join(rises)} rise above their own trend"] if rises else []
        said += ["the learning rate rises and the loss has stopped falling"] if "lr" in self.signals else []
        said += ["the loss scale has collapsed"] if "loss_scale" in self.signals else []
        return f"since step {self.since_step} {', '.join(said)}: a divergence may follow"


class _Trend:
    """Where a signal has been, robustly, and how far it is above that now."""

    def __init__(self, least: float) -> None:
        self._least = least
        self.begin()

    def begin(self) -> None:
        self._intervals, self._centre, self._size, self._last = 0, 0.0, 2 * self._least, 0.0
        self._before = self.z = -math.inf

    def take(self, x: float) -> None:
        n, least = self._intervals, self._least
        if n == 0:
            self._centre = self._last = x
        above, size = x - self._centre, math.hypot(self._size, least)
        now = above / size if n > _LEAST_INTERVALS else -math.inf
        self.z, self._before = min(self._before, now), now
        if n:
            share = max(1 / _MEMORY, 1 / (n + 1))
            self._centre += share * max(-_CLIP * size, min(_CLIP * size, above))
            self._size += share * (1.05 * min(abs(x - self._last), 3 * size) - self._size)
        self._intervals, self._last = n + 1, x


class EarlyWarnings(Detector):
    """Watches the trends of the leading signals; `now` is the warning in force."""

    def __init__(self, thresholds: Thresholds) -> None:
        self.warnings: deque[EarlyWarning] = deque(maxlen=_KEPT)
        self._trends = {name: _Trend(_LEAST_SIZE.get(name, _LEAST_OTHER)) for name in _RISES}
        self._values: dict[str, deque[float]] = {}  # Of the block under way, where its samples came one by one
        self._measured: Iterable[str] = ()
        self._halves: dict[str, list[float]] = {name: [] for name in _RISES}
        self._blocks = 0
        self._starts: deque[int] = deque(maxlen=2)  # First steps of the last two intervals
        self._settings: tuple[float | None, float | None] = (None, None)
        self._lr: float | None = None
        self._lr_centre = self._lr_before = self._lr_highest = self._lr_above = 0.0
        self._lr_intervals = self._silent = 0
        self._resumed_step: int | None = None

    @property
    def now(self) -> EarlyWarning | None:
        return self.warnings[-1] if self.warnings and self.warnings[-1].end_step is None else None

    def push(self, samples: Samples, known: Known) -> Finding | None:
        readings = samples.readings
        settings = readings.get("seqlen"), readings.get("global_batch_samples")
        if settings != self._settings or known.resumed_step != self._resumed_step:
            self._settings, self._resumed_step = settings, known.resumed_step
            self._begin()
        self._lr = readings.get("lr")
        if samples.plain:
            self._measured = samples.signals
        else:
            for name, values in samples.signals.items():
                self._values.setdefault(name, deque(maxlen=BLOCK)).extend(values)
        return None

    def learn(self, block: Block, known: Known) -> None:
        if not self._blocks:
            self._starts.append(block.first_step)
        self._halves["loss"].append(block.median)
        for name in self._values or self._measured:
            if name in _RISES and (middle := self._middle(name, known)) is not None:
                self._halves[name].append(middle)
        self._values, self._measured = {}, ()
        self._blocks += 1
        if self._blocks == _INTERVAL_BLOCKS:
            self._blocks = 0
            self._end_interval(block.last_step, known)

    def _middle(self, name: str, known: Known) -> float | None:
        """The block's median of the signal: the band's own, where the samples came together."""
        if not self._values:
            return known.leading.bands[name].newest
        values = [value for value in self._values[name] if math.isfinite(value)]
        return median(values) if values else None

    def _end_interval(self, step: int, known: Known) -> None:
        rewarmed = self._take_lr()
        if rewarmed:
            self._begin()
        for name, halves in self._halves.items():
            if halves:
                self._trends[name].take(math.log(max(sum(halves) / len(halves), 1e-30)))
                self._halves[name] = []
        if known.alarm is None:
            self._weigh(step, known)

    def _weigh(self, step: int, known: Known) -> None:
        scores = {n: min(max(self._trends[n].z / least, 0.0), _MOST_OF_ONE) ** 2 for n, least in _RISES.items()}
        if self._lr_above > _LR_ABOVE and self._trends["loss"].z > _LOSS_STOPS:
            scores["lr"] = _LR_SCORES
        if known.leading.scale_collapsed:
            scores["loss_scale"] = _SCALE_SCORES
        self._silent += _INTERVAL_BLOCKS * BLOCK
        now = self.now
        if sum(scores.values()) >= _WARNS:
            self._silent = 0
            if now is None:
                named = sorted((n for n, score in scores.items() if score >= 0.5), key=lambda n: -scores[n])
                self.warnings.append(EarlyWarning(since_step=self._starts[0], step=step, signals=tuple(named)))
        elif now is not None and self._silent >= _PASSES_SAMPLES:
            self.warnings[-1] = replace(now, end_step=step)

    def _take_lr(self) -> bool:
        """Whether the LR rises to what it was before: what follows does not compare. `_lr_above`: how far it is above
        its own trend (log), where it rises to where it has never been; else 0."""
        lr, before, highest = self._lr, self._lr_before, self._lr_highest
        self._lr_above = 0.0
        if not lr or lr <= 0:
            return False
        x, n = math.log(lr), self._lr_intervals
        if before and lr > max(1.001 * before, highest):
            self._lr_above = x - self._lr_centre
        self._lr_centre = x if n == 0 else self._lr_centre + max(1 / _MEMORY, 1 / (n + 1)) * (x - self._lr_centre)
        self._lr_before, self._lr_highest, self._lr_intervals = lr, max(lr, highest), n + 1
        return 0 < 1.005 * before < lr < 0.98 * highest

    def _begin(self) -> None:
        for trend in self._trends.values():
            trend.begin()
        self._values, self._blocks = {}, 0
        self._halves = {name: [] for name in _RISES}

    def reset(self, why: Reset) -> None:
        self._begin()
