"""Early warning: signals that rise together against their own trends while the loss is inside its band. It has no
findings and never raises the alarm: a checkpoint is pinned and a save is asked for, and no more.

Beside them the largest attention logit, where the trainer gives it, has a limit.

Of each signal x is the log of a block's median. Its trend is a running centre and a running size of the differences of
neighbours, both clipped, so that one outlier moves them little; z = (x - centre) / size, the smallest of the last three
blocks. A signal scores (z / `_RISES`)², 4 at most. 4 together are a warning: two signals that rise clearly, or one that
rises far. Memory and time for a sample do not grow with the samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.judge.detectors.detector import Block, Detector, Finding, Known, Reset
from sentinel.judge.noise_band import BLOCK, median
from sentinel.judge.readings import Samples
from sentinel.judge.thresholds import Thresholds

# z at which a signal scores 1. Chosen on the tuning settings of benchmarks/early_warning.py alone. adam_variance_l1 is
# not here: it foresaw nothing there. The spread over ranks is not: no recorded run has it before a divergence.
_RISES = {"loss": 0.4, "grad_norm": 3.0, "adam_variance_max": 3.5, "update_norm": 1.5}
_LEAST_SIZE = {"loss": 0.01}  # Least size of a difference (log); of the other signals `_LEAST_OTHER`
_LEAST_OTHER = 0.04
_MOST_OF_ONE = 2.0  # z / _RISES is cut here: one signal alone warns where it reaches this
_WARNS = 4.0
# An LR that rises to where it has never been while the loss has stopped falling: so far above its own trend (log), and
# this z of the loss. A warmup that does good has a loss that falls.
_LR_ABOVE, _LOSS_STOPS, _LR_SCORES = 0.1, -2.0, 4.0
# A largest attention logit above it is a warning by itself, and again where it has doubled since: the softmax then has
# one key alone. Kimi K2 clips at 100 (arXiv:2507.20534). Its trend says nothing: it rises in healthy runs too.
_LOGIT_LIMIT, _LOGIT_SCORES = 100.0, 4.0
_SCALE_SCORES = 2.0  # The loss scale has collapsed: see LeadingSignals
_MEMORY = 48  # Blocks that a trend reaches back
_SHARE = 1 / _MEMORY
_LASTS = 3  # Blocks in a row in which a signal has to stand above its trend
_LEAST_BLOCKS = 12  # Before them a trend is not known
_CLIP = 4.0
_NAMED = 0.7  # A signal that stands at this share of `_RISES` is named
_SMALLEST = 1e-30  # Of a reading that is 0, or below, the log is that of this
_LOG_SMALLEST = math.log(_SMALLEST)
_PASSES_SAMPLES = 256  # Without a sign for so long, a warning has passed
_KEPT = 64  # Warnings that are remembered


_WORDS = {  # Of the signs that are no rise above a trend
    "lr": "the learning rate rises and the loss has stopped falling",
    "loss_scale": "the loss scale has collapsed",
    "attention_logit_max": f"the largest attention logit is above {_LOGIT_LIMIT:g}, which the rung key qk_clip limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyWarning:
    since_step: int  # Where the rise began to be seen: a checkpoint from before it is older than what is warned of
    step: int  # The step at which it was known
    # What rose, by what it scored; lr: it rises and the loss has stopped falling; attention_logit_max: it is too large
    signals: tuple[str, ...]
    end_step: int | None = None  # Where it had passed; None while it lasts

    @property
    def reason(self) -> str:
        rises = [name for name in self.signals if name not in _WORDS]
        trends = "rises above its own trend" if len(rises) == 1 else "rise above their own trends"
        said = [f"{' and '.join(rises)} {trends}"] if rises else []
        said += [words for name, words in _WORDS.items() if name in self.signals]
        return f"since step {self.since_step} {', '.join(said)}: a divergence may follow"


class _Trend:
    """Where a signal has been, robustly, and how far it is above that now."""

    def __init__(self, least: float, rises: float) -> None:
        self._variance, self._size, self._rises = least * least, 2 * least, rises
        self.begin()

    def begin(self) -> None:
        # One tuple: this is busy code. Blocks, centre, size, the last x, the heights of the last block and of the one
        # before
        self._state = (0, 0.0, self._size, 0.0, -math.inf, -math.inf)
        self.height = -math.inf  # z / _RISES, the least of the last three blocks

    def take(self, value: float) -> float:
        """Takes a block's median; returns the height."""
        x = math.log(value) if value > _SMALLEST else _LOG_SMALLEST
        n, centre, size, last, one, two = self._state
        if n == 0:
            self._state = (1, x, size, x, one, two)
            return -math.inf
        above, moved = x - centre, x - last if x > last else last - x
        spread = math.sqrt(size * size + self._variance)
        now = above / (spread * self._rises) if n > _LEAST_BLOCKS else -math.inf
        self.height = height = min(two, one, now)
        most = _CLIP * spread
        if not -most < above < most:
            above = math.copysign(most, above)
        if moved > 3 * spread:
            moved = 3 * spread
        share = _SHARE if n >= _MEMORY else 1 / (n + 1)
        self._state = (n + 1, centre + share * above, size + share * (1.05 * moved - size), x, now, one)
        return height


class EarlyWarnings(Detector):
    """Watches the trends of the leading signals; `now` is the warning in force."""

    only_unusual = True  # of samples that come together the bands have the medians

    def __init__(self, thresholds: Thresholds) -> None:
        self.warnings: deque[EarlyWarning] = deque(maxlen=_KEPT)
        self._trends = {name: _Trend(_LEAST_SIZE.get(name, _LEAST_OTHER), least) for name, least in _RISES.items()}
        self._loss = self._trends["loss"]
        self._signals = [(name, trend) for name, trend in self._trends.items() if name != "loss"]
        # The signals of the block under way, where its samples came one by one
        self._single: deque[Mapping[str, list[float]]] = deque(maxlen=BLOCK)
        self._starts: deque[int] = deque(maxlen=_LASTS)  # First steps of the last blocks
        self._settings: tuple[float | None, float | None] = (None, None)
        self._lr_centre = self._lr_before = self._lr_peak = self._lr_above = 0.0
        self._lr_blocks = self._silent = 0
        self._resumed_step: int | None = None
        self._logit_limit, self._logit_passed = _LOGIT_LIMIT, False

    @property
    def now(self) -> EarlyWarning | None:
        return self.warnings[-1] if self.warnings and self.warnings[-1].end_step is None else None

    @property
    def agrees(self) -> bool:
        """Whether a warning is in force that rests on more than the loss, or a logit above its limit: healthy runs have
        such logits too."""
        return self.now is not None and not {*self.now.signals} <= {"loss", "attention_logit_max"}

    def is_quiet(self, samples: Samples, known: Known) -> bool:
        logit = samples.readings.get("attention_logit_max")
        return logit is None or logit <= self._logit_limit

    def push(self, samples: Samples, known: Known) -> Finding | None:
        readings = samples.readings
        settings = readings.get("seqlen"), readings.get("global_batch_samples")
        if settings != self._settings or known.resumed_step != self._resumed_step:
            if known.resumed_step != self._resumed_step:
                self._logit_limit = _LOGIT_LIMIT
            self._settings, self._resumed_step = settings, known.resumed_step
            self._begin()
        if samples.signals:
            self._single.append(samples.signals)
        logit = readings.get("attention_logit_max")
        if logit is not None and not logit <= self._logit_limit:  # nan too
            self._logit_limit, self._logit_passed = 2 * logit if logit == logit else math.inf, True
        return None

    def check(self, block: Block, known: Known) -> Finding | None:
        self._starts.append(block.first_step)
        lr = known.lr
        if lr == self._lr_before or not lr or lr < 0:
            self._lr_above = 0.0
        elif self._rewarms(lr):
            self._begin()
        bands, single = known.leading.bands, self._single
        height = self._loss.take(block.median)
        score = 0.0 if height <= 0 else min(height, _MOST_OF_ONE) ** 2
        for name, trend in self._signals:
            band = bands[name]
            newest = _middle([v for one in single for v in one.get(name, ())]) if single else band.newest
            band.newest = math.nan
            if newest == newest and (height := trend.take(newest)) > 0:  # not nan
                score += min(height, _MOST_OF_ONE) ** 2
        if single:
            single.clear()
        self._silent += BLOCK
        score += _LOGIT_SCORES * self._logit_passed
        if score >= _WARNS - _SCALE_SCORES or self._lr_above > _LR_ABOVE or self._silent == _PASSES_SAMPLES:
            self._weigh(score, block.last_step, known)
        return None

    def _weigh(self, score: float, step: int, known: Known) -> None:
        stopped = self._lr_above > _LR_ABOVE and self._loss.height > _LOSS_STOPS / _RISES["loss"]
        scale, now = known.leading.scale_collapsed, self.now
        if score + _LR_SCORES * stopped + _SCALE_SCORES * scale >= _WARNS:
            self._silent = 0
            if now is None:
                heights = {name: trend.height for name, trend in self._trends.items() if trend.height >= _NAMED}
                rising = sorted(heights, key=lambda name: -heights[name])
                logit = ("attention_logit_max",) * self._logit_passed
                signals = (*rising, *logit, *("lr",) * stopped, *("loss_scale",) * scale)
                self.warnings.append(EarlyWarning(since_step=self._starts[0], step=step, signals=signals))
        elif now is not None and self._silent >= _PASSES_SAMPLES:
            self.warnings[-1] = replace(now, end_step=step)
        self._logit_passed = False

    def _rewarms(self, lr: float) -> bool:
        """Whether the LR rises to what it was before: what follows does not compare. `_lr_above`: how far it is above
        its own trend (log), while it rises; else 0."""
        before = self._lr_before
        if lr < before:
            self._lr_peak = max(self._lr_peak, before)
        x, rises = math.log(lr), lr > 1.0005 * before > 0
        self._lr_above = x - self._lr_centre if rises else 0.0
        n = self._lr_blocks = self._lr_blocks + 1
        self._lr_centre += (x - self._lr_centre) / min(_MEMORY, n)
        self._lr_before = lr
        return rises and lr <= 1.02 * self._lr_peak

    def _begin(self) -> None:
        for trend in self._trends.values():
            trend.begin()
        self._single.clear()

    def reset(self, why: Reset) -> None:
        self._begin()


def _middle(values: Iterable[float]) -> float:
    """The median of the finite ones; nan where there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan
