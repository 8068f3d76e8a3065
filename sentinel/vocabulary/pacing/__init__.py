"""Schedules as formulas, re-anchored: sequence length, learning rate, batch size, token dropping, difficulty.

Each counts from an anchor, the step that a restart resumes from: a schedule that counts from step 0 would be over
before a restart at step 3000 has begun. `step` is everywhere the number of the update that is being made: the first
update of a run is step 1, the first after resuming from global_step10 is step 11.
"""

from sentinel.vocabulary.pacing.adaptive_state import AdaptiveState
from sentinel.vocabulary.pacing.batch_size import SLW_AND_BATCH, BatchSizeSchedule, refuse_beside_slw
from sentinel.vocabulary.pacing.curriculum import CurriculumSchedule, MetricSchedule
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, IndexedMetric, curriculum_learning, data_efficiency
from sentinel.vocabulary.pacing.difficulty import DifficultySchedule
from sentinel.vocabulary.pacing.lr import LrSchedule
from sentinel.vocabulary.pacing.random_ltd import RandomLtdSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.seqlen_adaptive import Adaptive, Custom
from sentinel.vocabulary.pacing.seqlen_fixed import FixedDiscrete, FixedLinear, FixedRoot, Mixed, staircase
from sentinel.vocabulary.pacing.shortening import Shortening, shortening
from sentinel.vocabulary.pacing.slw import BILLION, SlwChanges, SlwRun, slw_changes, start_for_size, warmup_tokens
from sentinel.vocabulary.pacing.track import Position, Track, trained_tokens

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
    "SlwChanges",
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
