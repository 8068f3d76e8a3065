"""Baselines of the settings that a run has left: a loss is compared with losses at the same settings."""

from __future__ import annotations

from collections import OrderedDict

from sentinel.judge.detectors.detector import Baseline
from sentinel.judge.schedule_changes import Settings

_KEPT_SETTINGS = 4  # Settings that are kept: a schedule that goes back and forth has two


class Baselines:
    """At a length that was trained at before, the loss is compared with what it was there.

    A schedule that goes back and forth (900 steps short, 100 full) would else begin its bands anew at every turn, and
    a divergence that shows at the full length alone would never be seen.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[Settings, Baseline] = OrderedDict()

    def forget(self) -> None:
        """Nothing that was compares with what comes, whatever its settings."""
        self._left.clear()

    def has(self, settings: Settings) -> bool:
        """Whether the run was there before."""
        return settings in self._left

    def leave(self, settings: Settings, baseline: Baseline) -> None:
        """Keeps it; of more than a few settings the one that was left longest ago is given up."""
        self._left[settings] = baseline
        self._left.move_to_end(settings)
        if len(self._left) > _KEPT_SETTINGS:
            self._left.popitem(last=False)

    def take_up(self, settings: Settings) -> Baseline | None:
        """What was left at these settings, to continue from; None where nothing was."""
        baseline = self._left.pop(settings, None)
        if baseline is not None and baseline.episode is not None:
            baseline.episode.resume()
        return baseline
