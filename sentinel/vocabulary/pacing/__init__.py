"""Schedules as formulas that count from an anchor, the step that a restart resumes from: sequence length, LR, batch
size, token dropping, difficulty. `step` is the number of the update that is being made, 1 for a run's first.

In: a schedule's settings. Out: its value at a step, a sample or a token.
"""

from sentinel.vocabulary.pacing.data_efficiency import (
    CurriculumSchedule,
    DifficultySchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from sentinel.vocabulary.pacing.lr_and_batch import SLW_AND_BATCH, BatchSizeSchedule, LrSchedule, refuse_beside_slw
from sentinel.vocabulary.pacing.seqlen import Adaptive, Custom, SeqlenSchedule
from sentinel.vocabulary.pacing.slw_changes import BILLION, SlwRun, slw_changes, start_for_size
from sentinel.vocabulary.pacing.slw_formulas import FixedDiscrete, FixedLinear, FixedRoot, Mixed, staircase
from sentinel.vocabulary.pacing.track import Position, Shortening, Track, shortening, trained_tokens

__all__ = [
    "BILLION",
    "SLW_AND_BATCH",
    "Adaptive",
    "BatchSizeSchedule",
    "CurriculumSchedule",
    "Custom",
    "DifficultySchedule",
    "FixedDiscrete",
    "FixedLinear",
    "FixedRoot",
    "LrSchedule",
    "MetricSchedule",
    "Mixed",
    "Position",
    "RandomLtdSchedule",
    "SeqlenSchedule",
    "Shortening",
    "SlwRun",
    "Track",
    "refuse_beside_slw",
    "shortening",
    "slw_changes",
    "staircase",
    "start_for_size",
    "trained_tokens",
]
