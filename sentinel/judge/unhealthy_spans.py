"""Steps at which a run's own readings were far out of proportion: a checkpoint saved there contains it.

"Usual" is the median of the last 64 medians of 8 healthy readings. Unhealthy: sum of sqrt(v) above 10 times usual;
largest sqrt(v) above 30 times usual; gradient norm above 30 times usual, five in a row, skipped updates excluded; loss
above twice usual and by 1 nat, five in a row; any of them not a number (loss and gradient norm: five in a row).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.judge.noise_band import BLOCK, median
from sentinel.judge.readings import COLUMNS
from sentinel.judge.schedule_changes import Regime
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.sample import Sample

# Blocks of 8 healthy samples that the usual value is the median of: where a signal grows as the square of the steps, it
# is four times the median of all that was.
_HISTORY_BLOCKS = 64
_LEAST_BLOCKS = 4  # Blocks without which no usual value is known
# The factors are so many times wider while only losses at other settings (a longer sequence) are known: the loss and
# the gradient's noise are higher at a short length.
_UNLIKE = 10.0
_NEW_NORMAL_SAMPLES = 512  # A healthy run out of proportion for so many samples: the history begins anew
_REMEMBERED = 256  # Spans that are kept


@dataclass(frozen=True, slots=True)
class _Signal:
    column: str
    words: str
    factor: float  # Times its usual value at which a reading is extreme
    above: float = 0.0  # … and at least so far above it, in the signal's unit
    running: int = 1  # Readings in a row that must be: one loss or gradient may be of an odd batch


# Healthy targets are never refused: of all steps of the labelled curves at which a healthy checkpoint can stand, none
# lies in such a span (`benchmarks/healthy_targets.py`).
_SIGNALS = (
    _Signal("adam_variance_l1", "the sum of sqrt(v)", 10.0),
    _Signal("adam_variance_max", "the largest sqrt(v)", 30.0),
    _Signal("loss", "the loss", 2.0, above=1.0, running=5),
    _Signal("grad_norm", "the gradient norm", 30.0, running=5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthySpan:
    first_step: int  # The step after the last reading that was not
    last_step: int
    words: str  # The signal, in words
    worst: float  # nan where it was not a number
    usual: float | None  # What was usual before it; None where that is unknown and the reading was not a number

    @property
    def reason(self) -> str:
        usual = "" if self.usual is None else f", where {self.usual:.3g} was usual before"
        return f"{self.words} was {self.worst:.3g} between the steps {self.first_step} and {self.last_step}{usual}"

    @property
    def sentence(self) -> str:
        """What is wrong with a checkpoint of these steps, after its tag."""
        return f"contains the divergence: {self.reason}"


class UnhealthySpans:
    """Folds the samples of one lineage, in order. What is kept does not grow with the samples. Nothing is
    learned from an extreme reading."""

    def __init__(self, thresholds: Thresholds, planned: Iterable[int] = ()) -> None:
        self._regime = Regime(thresholds, planned)
        self._trackers = [_Tracker(signal) for signal in _SIGNALS]
        self._past: deque[UnhealthySpan] = deque(maxlen=_REMEMBERED)
        self._before: int | None = None

    @property
    def spans(self) -> tuple[UnhealthySpan, ...]:
        lasting = [span for tracker in self._trackers if (span := tracker.span) is not None]
        return tuple(sorted([*self._past, *lasting], key=lambda span: (span.first_step, span.words)))

    def push(self, sample: Sample, *, well: bool) -> None:
        """Takes the next sample; `well` is whether the judge finds nothing wrong with the run."""
        change = self._regime.take(sample.global_step, {name: getattr(sample, name) for name in COLUMNS})
        for tracker in self._trackers:
            if change is not None and not change.comparable:
                tracker.begin_anew()
            value = getattr(sample, tracker.signal.column)
            if value is None or (sample.skipped and tracker.signal.column == "grad_norm"):
                continue
            ended = tracker.take(sample.global_step, value, self._before, well=well)
            if ended is not None:
                self._past.append(ended)
        self._before = sample.global_step


class _Tracker:
    def __init__(self, signal: _Signal) -> None:
        self.signal = signal
        self._unlike: float | None = None
        self._forget()

    def _forget(self) -> None:
        self._blocks: deque[float] = deque(maxlen=_HISTORY_BLOCKS)
        self._block: list[float] = []
        self._known: float | None = None
        self._end()

    def _end(self) -> None:
        self._first = self._last = self._run = self._well = 0
        self._worst = -math.inf
        self._usual: float | None = None

    def begin_anew(self) -> None:
        """Readings before do not compare with those after, but for a wider factor."""
        self._unlike = self._unlike if self._known is None else self._known
        self._blocks.clear()
        self._block.clear()
        self._known = None

    @property
    def span(self) -> UnhealthySpan | None:
        if self._run < self.signal.running:
            return None
        words, worst, usual = self.signal.words, self._worst, self._usual
        return UnhealthySpan(first_step=self._first, last_step=self._last, words=words, worst=worst, usual=usual)

    def take(self, step: int, value: float, before: int | None, *, well: bool) -> UnhealthySpan | None:
        if not self._is_extreme(value):
            over = self.span
            self._end()
            self._learn(value)
            return over
        if not self._run:
            self._first = step if before is None else min(before + 1, step)
            self._usual = self._known if self._known is not None else self._unlike
        self._run, self._last = self._run + 1, step
        self._worst = value if math.isnan(value) else max(self._worst, value)
        self._well = self._well + 1 if well else 0
        if self._well < _NEW_NORMAL_SAMPLES:
            return None
        over = self.span
        self._unlike = None
        self._forget()
        return over

    def _is_extreme(self, value: float) -> bool:
        if not math.isfinite(value):
            return True
        usual, wider = (self._unlike, _UNLIKE) if self._known is None else (self._known, 1.0)
        return usual is not None and value > self.signal.factor * wider * usual and value > usual + self.signal.above

    def _learn(self, value: float) -> None:
        self._block.append(value)
        if len(self._block) == BLOCK:
            self._blocks.append(median(self._block))
            self._block.clear()
            if len(self._blocks) >= _LEAST_BLOCKS:
                self._known = median(self._blocks)
