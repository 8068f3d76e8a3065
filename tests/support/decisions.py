"""A decision as the incident log has it."""

from __future__ import annotations

from sentinel.plan.incident.incident import Rollback
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, TrainingSettings
from sentinel.vocabulary.pacing import FixedLinear, LrSchedule

LR = LrSchedule(peak=1e-2, warmup=160, anchor=10, decay_start=20, decay_end=240)
SEQLEN = FixedLinear(start=8, full=128, total_steps=60, anchor_step=10)
OVERRIDES = Overrides(
    incident="incident-1",
    rollback="incident-1-r1",
    anchor=Anchor(global_step=10, consumed_samples=160, consumed_tokens=20480),
    standing=TrainingSettings(lr=LR, seqlen=SEQLEN),
    once=Once(id="incident-1-r1", seed=4),
)


DECISION = Rollback(
    id="incident-1-r1",
    rung="warmup",
    hypothesis="…",
    target_tag="global_step10",
    target_step=10,
    overrides=OVERRIDES,
    changes=("seed 3 -> 4",),
    decided_unix_s=7.0,
    lost_steps=70,
)
