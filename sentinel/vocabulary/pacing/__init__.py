"""Schedules as formulas that count from an anchor, the step that a restart resumes from: sequence length, LR, batch
size, token dropping, difficulty. `step` is the number of the update that is being made, 1 for a run's first."""

from sentinel.vocabulary.pacing.data_efficiency import (
    CurriculumSchedule,
    DifficultySchedule,
    MetricSchedule,
    RandomLtdSchedule,
)
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, IndexedMetric, curriculum_learning, data_efficiency
from sentinel.vocabulary.pacing.lr_and_batch import SLW_AND_BATCH, BatchSizeSchedule, LrSchedule, refuse_beside_slw
from sentinel.vocabulary.pacing.seqlen import Adaptive, AdaptiveState, Custom, SeqlenSchedule
from sentinel.vocabulary.pacing.slw_changes import BILLION, SlwRun, slw_changes, start_for_size, warmup_tokens
from sentinel.vocabulary.pacing.slw_formulas import FixedDiscrete, FixedLinear, FixedRoot, Mixed, staircase
from sentinel.vocabulary.pacing.track import Position, Shortening, Track, shortening, trained_tokens

__all__ = [
    "BILLION",
    "SLW_AND_BATCH",
    "Adaptive",
    "AdaptiveState",
    "BatchSizeSchedule",
    "CurriculumSchedule",
    "Custom",
    "DataEfficiency",
    "DifficultySchedule",
    "FixedDiscrete",
    "FixedLinear",
    "FixedRoot",
    "IndexedMetric",
    "LrSchedule",
    "MetricSchedule",
    "Mixed",
    "Position",
    "RandomLtdSchedule",
    "SeqlenSchedule",
    "Shortening",
    "SlwRun",
    "Track",
    "curriculum_learning",
    "data_efficiency",
    "refuse_beside_slw",
    "shortening",
    "slw_changes",
    "staircase",
    "start_for_size",
    "trained_tokens",
    "warmup_tokens",
]
