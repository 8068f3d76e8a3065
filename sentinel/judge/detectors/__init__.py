"""The ways in which a run diverges, one file each. A new detector is one file and one entry in `DETECTORS`.

In: the next sample, or block of samples, and what is known of the run (`Known`). Out: a `Finding`, or None.
"""

from __future__ import annotations

from sentinel.judge.detectors.attention_logits import AttentionLogits
from sentinel.judge.detectors.bad_resume import BadResume
from sentinel.judge.detectors.detector import Detector
from sentinel.judge.detectors.early_rise import EarlyRise
from sentinel.judge.detectors.early_warning import EarlyWarnings
from sentinel.judge.detectors.immediate_divergence import ImmediateDivergence
from sentinel.judge.detectors.leading_signals import LeadingSignals
from sentinel.judge.detectors.loss_drop import LossDrop
from sentinel.judge.detectors.no_loss import NoLoss
from sentinel.judge.detectors.not_finite import NotFinite
from sentinel.judge.detectors.plateau import Plateau
from sentinel.judge.detectors.rising_at_end import RisingAtEnd
from sentinel.judge.detectors.skipped_updates import SkippedUpdates
from sentinel.judge.detectors.slow_climb import SlowClimb
from sentinel.judge.detectors.spike_or_divergence import LeftBand
from sentinel.judge.detectors.zero_loss import ZeroLoss

# In the order in which they get a sample. One that excludes it (no update, no number) keeps it from those after it.
DETECTORS: tuple[type[Detector], ...] = (
    SkippedUpdates,
    LeadingSignals,
    NotFinite,
    NoLoss,
    ZeroLoss,
    BadResume,
    LossDrop,
    LeftBand,
    ImmediateDivergence,
    EarlyRise,
    SlowClimb,
    Plateau,
    RisingAtEnd,
    EarlyWarnings,
    AttentionLogits,
)
