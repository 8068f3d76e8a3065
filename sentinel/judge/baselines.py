"""What a loss is compared with under one setting of the run, and what of it is kept for when a setting comes back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sentinel.judge.episode import Episode
from sentinel.judge.noise_band import NoiseBand
from sentinel.judge.scales import Scales
from sentinel.judge.schedule_changes import Settings
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.trend import Reference, Trend

__all__ = ["Compared", "Kept"]

_KEPT_SETTINGS = 4
"""Settings that are kept: a schedule that goes back and forth has two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The past that a loss at these settings is compared with."""

    band: NoiseBand
    scales: Scales
    trend: Trend
    episode: Episode | None
    """Under way when the settings were left: whether it lasts shows when they are back."""

    @classmethod
    def begun(
        cls, thresholds: Thresholds, references: Sequence[Reference], before: NoiseBand | None = None
    ) -> Compared:
        """Nothing to compare with yet; of the band `before` only the outliers are known on."""
        t = thresholds
        return cls(
            band=before.begun_anew() if before else NoiseBand(sigmas=t.band_sigmas, floor=t.band_floor),
            scales=Scales(sigmas=t.climb_sigmas, tolerance=t.climb_tolerance, patience_steps=t.patience_steps),
            trend=Trend(references),
            episode=None,
        )


class Kept:
    """Like with like: at a length that was trained at before, the loss is compared with what it was there.

    A schedule that goes back and forth (900 steps short, 100 full) would else begin its bands anew at every turn, and
    an illness that shows at the full length alone would never be seen.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[Settings, Compared] = OrderedDict()

    def forget(self) -> None:
        """Nothing that was compares with what comes, whatever its settings."""
        self._left.clear()

    def has(self, settings: Settings) -> bool:
        """Whether the run was there before."""
        return settings in self._left

    def leave(self, settings: Settings, compared: Compared) -> None:
        """Keeps what was compared with; of more than a few settings the one that was left longest ago is given up."""
        self._left[settings] = compared
        self._left.move_to_end(settings)
        if len(self._left) > _KEPT_SETTINGS:
            self._left.popitem(last=False)

    def take_up(self, settings: Settings, references: Sequence[Reference]) -> Compared | None:
        """What was left at these settings, to go on from, beside the references of now; None where nothing was."""
        compared = self._left.pop(settings, None)
        if compared is None:
            return None
        compared.trend.references = references
        if compared.episode is not None:
            compared.episode.resume()
        return compared
