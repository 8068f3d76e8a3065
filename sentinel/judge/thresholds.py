"""Where the judge draws its lines. Each says its unit, why the default, and how to turn it off."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The `[judge]` table of a run's configuration."""

    band_sigmas: float = 6.0
    """Robust standard deviations above its level at which the loss has left its own noise band.

    6 as in OLMo-core's step skipping: under normal noise one step in 10^9; heavy tails are what the patience is for.
    inf turns the noise band off, and with it every verdict but nan, skipped runs and slow climbs.
    """

    band_floor: float = 0.03
    """The band is at least this share of its level wide (dimensionless), whatever the noise.

    A very smooth loss (0.1 % noise) leaves six of its deviations without anything being wrong. 0 turns the floor off.
    """

    band_window_samples: int = 32
    """Samples that the band's level and noise are taken from; short, since an early loss falls fast."""

    band_min_samples: int = 12
    """Samples before the band means anything; until then only nan, skipped runs and slow climbs are judged."""

    patience_samples: int = 40
    """Samples that a spike is given to come back by itself before it is a divergence.

    Samples, not steps: a trainer that logs every fifth step has shown only eight readings in forty steps.

    tr11-176B rose from 2.1 to 5.1 and was back 30 steps after its peak: rolling back would have been wrong. Longer is
    safer and costs that many steps of a run that is already lost.
    """

    healed_window_samples: int = 8
    """Samples whose median must be back at the level for a spike to have healed: one good step proves nothing."""

    healed_tolerance: float = 0.005
    """How far above its old level a healed loss may stay (share of the level), beside what noise explains.

    Marin's fatal spike came back to 1.975 from 1.96, 0.8 % above, and stayed there for good.
    """

    climb_window_samples: int = 20
    """Samples of the moving mean whose best value a slow climb and a recovery are measured against."""

    climb_tolerance: float = 0.02
    """A moving mean this share above the best one, for `patience_samples` together, is a divergence (a slow climb).

    Also at least `band_sigmas` standard errors of the mean. inf turns it off.
    """

    skipped_run_steps: int = 50
    """Updates skipped in a row that are a divergence: the weights are intact, and nothing moves any more.

    A loss scale halves at each overflow, so 50 in a row have taken it from 2^32 to below 1 with room to spare.
    """

    led_by_window_steps: int = 50
    """How far before the onset another signal's departure still counts as having led it (steps)."""

    stalled_after_s: float = 600.0
    """Seconds without a sample, from a job that is alive, before it is called stalled.

    Two witnesses are needed: the journal, and the log or the checkpoints. inf turns it off.
    """
