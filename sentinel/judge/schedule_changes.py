"""Planned changes: what the trainer itself reports to have changed, and how far the loss may move for it.

LR rises to a value it had before: 25 %. LR rises step by step to a new maximum (warmup): 10 %; jumps there: none.
Sequence length grows, random-LTD keeps more: 15 %. A curriculum admits more samples: 30 % (curriculum_tolerance). The
batch changes: 5 %. Length, kept tokens or admitted samples shrink below two thirds of the maximum: band, scales and
trend start anew. A setting returns to an earlier value: the earlier comparison continues. Each until 64 samples without
a further change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.judge.thresholds import Thresholds

Settings = tuple[float | None, ...]  # Values of the settings that losses compare under; None was never reported
_SETTLES_SAMPLES = 64  # Samples without a further change after which the new regime is the one that is compared with
_REWARMED = 1.02  # A learning rate this many times the lowest since the regime settled is rising; less is rounding
_AS_PRINTED = 1.0005  # A learning rate up to so many times another is the same one, printed to four digits
# Changes by less than this factor are part of a schedule, and no events of their own; so much less of a setting (a
# length that wavers with its batches) still compares, within the tolerance.
_LOG_LARGE = math.log(1.5)
_TAIL = 0.05  # Share of the highest learning rate below which its changes are the tail of a decay: factors grow there
_BATCH_TOLERANCE = 0.05  # How far the loss may move (share) when the batch changes, and with it the gradient's noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    step: int
    what: str  # In words: `the sequence length went from 64 to 128`
    is_event: bool  # Whether it is an event worth a line
    comparable: bool = True  # False where no loss before compares with those after (a much shorter length, other data)
    same_trend: bool = True  # False where a setting has moved by half since the trend was begun


@dataclass(frozen=True, slots=True)
class _Setting:
    column: str
    words: str
    text: str  # Format of a value
    tolerance: Callable[[Thresholds], float]  # How far the loss may move after it has changed (share of the level)
    default: float | None = None  # What a sample without it has; None is what the one before had
    at_most: str | None = None  # The column that it is a part of: a sample without it has all of that
    less_is_comparable: bool = False


_SETTINGS = (
    _Setting("seqlen", "the sequence length", "{:.0f}", lambda t: t.lengthening_tolerance),
    _Setting(
        "kept_tokens",
        "what random-LTD keeps of a sample",
        "{:.0f} tokens",
        lambda t: t.lengthening_tolerance,
        default=math.inf,
        at_most="seqlen",
    ),
    _Setting(
        "curriculum_share",
        "the curriculum's share of the samples",
        "{:.2%}",
        lambda t: t.curriculum_tolerance,
        default=1.0,
    ),
    _Setting(
        "global_batch_samples", "the batch", "{:.0f} samples", lambda _: _BATCH_TOLERANCE, less_is_comparable=True
    ),
)


class Regime:
    """Follows what is set of a run, and says how much wider the judge's tolerances are for a change of it."""

    def __init__(self, thresholds: Thresholds, planned: Iterable[int] = ()) -> None:
        self._thresholds = thresholds
        self._planned = sorted(planned, reverse=True)
        self._lr: float | None = None
        self._lowest_lr: float | None = None
        self._highest_lr = 0.0
        self._factor = 0.0
        self._values: list[float | None] = []  # Of all settings, as the newest sample had them
        self._settings: dict[str, float] = {}
        self._of_trend: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._unsettled = 0
        # What losses compare under: with the same settings they are of the same kind. What compares both ways (the
        # batch) is left out.
        self.settings: Settings = ()
        self.widened = 0.0  # Tolerance in force beside the usual ones (share of the level); 0 in a settled regime

    def take(self, step: int, readings: Mapping[str, float | None]) -> Change | None:
        """One sample's readings by their names; None was not measured. Of several changes, the greatest one."""
        if self._planned and step >= self._planned[-1]:
            while self._planned and step >= self._planned[-1]:
                self._planned.pop()
            return Change(
                step=step, what="a planned change of the run", is_event=True, comparable=False, same_trend=False
            )
        values = [readings.get(setting.column) for setting in _SETTINGS]
        if values == self._values:
            return None
        self._values = values if all(value == value for value in values) else []  # nan is a change each time
        found = [self._note(step, setting, value) for setting, value in zip(_SETTINGS, values, strict=True)]
        changes = [change for change in found if change is not None]
        if not changes:
            return None
        greatest = min(changes, key=lambda change: (change.comparable, not change.is_event))
        moved = any(_is_large(self._of_trend.setdefault(name, now), now) for name, now in self._settings.items())
        if moved:
            self._of_trend = dict(self._settings)
        return replace(greatest, same_trend=not moved)

    def _note(self, step: int, setting: _Setting, value: float | None) -> Change | None:
        whole = self._settings.get(setting.at_most, setting.default) if setting.at_most else setting.default
        after = whole if value is None else value
        if after is None or after == (before := self._settings.get(setting.column)):
            return None
        self._settings[setting.column] = after
        self.settings = tuple(self._settings.get(s.column) for s in _SETTINGS if not s.less_is_comparable)
        if before is None:
            self._of_trend[setting.column] = self._largest[setting.column] = after
            return None
        self._widen(setting.tolerance(self._thresholds))
        then, now = ("all" if math.isinf(value) else setting.text.format(value) for value in (before, after))
        return Change(
            step=step,
            what=f"{setting.words} went from {then} to {now}",
            is_event=_is_large(before, after),
            comparable=self._compares(setting, after),
        )

    def _compares(self, setting: _Setting, after: float) -> bool:
        """Whether the losses before compare: with more, and with little less than the most that there was."""
        largest = self._largest[setting.column]
        compares = after >= largest or setting.less_is_comparable or not _is_large(largest, after)
        self._largest[setting.column] = max(largest, after) if compares else after
        return compares

    def is_quiet(self, step: int) -> bool:
        return not self._planned or step < self._planned[-1]

    def end_block(self, step: int, samples: int, lr: float | None) -> Change | None:
        """The end of a block of so many samples, the last of which had this learning rate."""
        change = None if lr is None else self._note_rate(step, lr)
        if self._unsettled:
            self._unsettled = max(0, self._unsettled - samples)
        return change

    def settle(self, above_best: float) -> bool:
        """Whether the regime has just settled, and only losses from here on are compared: not where the loss is farther
        above what was best before (`above_best`, share) than the tolerance in force, which the change does not explain.
        """
        if self.widened == 0.0 or self._unsettled:
            return False
        explained = above_best <= self.widened
        self.widened, self._lowest_lr = 0.0, self._lr
        return explained

    def _note_rate(self, step: int, lr: float) -> Change | None:
        before, self._lr = self._lr, lr
        lowest = self._lowest_lr
        if lowest is None or lr < lowest:
            lowest = self._lowest_lr = lr
        rising = before is not None and lr > before and lr > _REWARMED * lowest
        known, self._highest_lr = lr <= _AS_PRINTED * self._highest_lr, max(lr, self._highest_lr)
        if rising and known:
            self._widen(self._thresholds.rewarm_tolerance)
        elif rising and not _is_large(before or lr, lr):  # at once to where it has never been is a mistake, no warmup
            self._widen(self._thresholds.warmup_tolerance)
        factor, self._factor = self._factor, 0.0 if before is None else _log_factor(before, lr)
        if before is None or self._factor < _LOG_LARGE:
            return None
        if self._factor < 2 * factor or lr < _TAIL * self._highest_lr or not known:
            return None  # a first warmup and the end of a decay are no changes of regime
        return Change(step=step, what=f"the learning rate went from {before:.3g} to {lr:.3g}", is_event=True)

    def _widen(self, tolerance: float) -> None:
        self.widened = max(self.widened, tolerance)
        self._unsettled = _SETTLES_SAMPLES


def _is_large(before: float, after: float) -> bool:
    return _log_factor(before, after) >= _LOG_LARGE


def _log_factor(before: float, after: float) -> float:
    low, high = abs(before), abs(after)
    if low > high:
        low, high = high, low
    return math.log(high / low) if low > 0 else (math.inf if high > 0 else 0.0)
