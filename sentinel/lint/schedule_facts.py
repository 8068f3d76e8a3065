"""The batch and the sequence length that the facts of a run ask for, as schedules."""

from __future__ import annotations

import contextlib

from sentinel.lint.facts import Facts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import BatchSizeSchedule, FixedDiscrete, FixedLinear, SeqlenSchedule, Track

__all__ = ["batch_schedule", "curriculum_schedule", "track_of"]


def track_of(facts: Facts) -> Track | None:
    """The run's batch and sequence length, step by step; None where the options do not show them."""
    batch = batch_schedule(facts)
    if batch is None or facts.seq_length is None:
        return None
    return Track(full=facts.seq_length, batch=batch, seqlen=curriculum_schedule(facts))


def batch_schedule(facts: Facts) -> BatchSizeSchedule | None:
    """`--rampup-batch-size` and the global batch; None where they are not shown or do not fit."""
    full, ramp = facts.global_batch_size, facts.rampup_batch_size
    if full is None:
        return None
    if ramp is None or ramp.start >= full:
        return BatchSizeSchedule(start=full, full=full, increment=1, ramp_samples=0)
    with contextlib.suppress(ConfigError):
        return BatchSizeSchedule(start=ramp.start, full=full, increment=ramp.increment, ramp_samples=ramp.samples)
    return None


def curriculum_schedule(facts: Facts) -> SeqlenSchedule | None:
    """The lengths of the script's own curriculum, counted from step 0; None where it has none that can be followed."""
    told = facts.curriculum
    if told is None or told.min_difficulty is None or told.max_difficulty is None:
        return None
    start, full, multiple = told.min_difficulty, told.max_difficulty, told.difficulty_step or 8
    with contextlib.suppress(ConfigError):
        match told.schedule:
            case "fixed_linear" if told.total_steps is not None:
                return FixedLinear(start=start, full=full, multiple=multiple, total_steps=told.total_steps)
            case "fixed_discrete":
                stages, ends = told.difficulties, told.max_steps
                return FixedDiscrete(start=start, full=full, difficulties=stages, max_steps=ends)
    return None
