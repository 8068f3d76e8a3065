"""Schedules as formulas, re-anchored: sequence length, learning rate, batch size, token dropping, difficulty.

Each counts from an anchor, the step that a restart resumes from: a schedule that counts from step 0 would be over
before a restart at step 3000 has begun. `step` is everywhere the number of the update that is being made: the first
update of a run is step 1, the first after resuming from global_step10 is step 11.
"""

from sentinel.vocabulary.pacing.adaptive_state import AdaptiveState
from sentinel.vocabulary.pacing.batch_size import SLW_AND_BATCH, BatchSizeSchedule, refuse_beside_slw
from sentinel.vocabulary.pacing.counting import StepCount, trained_tokens
from sentinel.vocabulary.pacing.curriculum import CurriculumSchedule, MetricSchedule
from sentinel.vocabulary.pacing.deepspeed import DataEfficiency, IndexedMetric, curriculum_learning, data_efficiency
from sentinel.vocabulary.pacing.difficulty import DifficultySchedule
from sentinel.vocabulary.pacing.lr import LrSchedule, resized_warmup
from sentinel.vocabulary.pacing.random_ltd import RandomLtdSchedule
from sentinel.vocabulary.pacing.seqlen import SeqlenSchedule
from sentinel.vocabulary.pacing.seqlen_adaptive import Adaptive, Custom
from sentinel.vocabulary.pacing.seqlen_fixed import FixedDiscrete, FixedLinear, FixedRoot, Mixed, staircase
from sentinel.vocabulary.pacing.shortening import Shortening, shortening
from sentinel.vocabulary.pacing.slw import SlwChanges, SlwRun, slw_changes

__all__ = [
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
    "RandomLtdSchedule",
    "SeqlenSchedule",
    "Shortening",
    "SlwChanges",
    "SlwRun",
    "StepCount",
    "curriculum_learning",
    "data_efficiency",
    "refuse_beside_slw",
    "resized_warmup",
    "shortening",
    "slw_changes",
    "staircase",
    "trained_tokens",
]
