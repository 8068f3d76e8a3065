"""The question of a bisect, its incident, and results of its probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sentinel.lab.bisect.causes import Question
from sentinel.lab.bisect.question import Means, question_of
from sentinel.lab.probes.probe import ProbeResult
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident
from sentinel.plan.observation import Checkpoint
from sentinel.vocabulary.overrides import CHANGES, Anchor
from sentinel.vocabulary.pacing import BatchSizeSchedule, LrSchedule
from tests.support.facts import facts_of
from tests.support.probe_trainers import ALARM, AT, TAG, WINDOW

ONSET = AT + 10
LR = LrSchedule(peak=1e-3, warmup=10, decay_end=400, decay_start=10)
BATCH = 4
FULL_BATCH = BatchSizeSchedule(start=BATCH, full=BATCH, increment=1, ramp_samples=0)
BASELINE = Baseline(lr=LR, seed=7, precision="bf16", full_seqlen=8, batch_size=FULL_BATCH)
INCIDENT = Incident(
    id="incident-1",
    opened_unix_s=0.0,
    attempt=1,
    onset_range=(ONSET, ONSET),
    alarm_step=ALARM,
    onset_tokens=None,
    batch_samples=BATCH,
    best_mean=None,
    reason="",
    baseline=BASELINE,
)
RUN = facts_of(applies=frozenset(CHANGES), trainer="ours", baseline=BASELINE)
_AFTER = {n: replace(s, consumed_samples=BATCH * n, global_batch_samples=BATCH) for n, s in WINDOW.after.items()}
COUNTED = replace(WINDOW, onset_step=ONSET, after=_AFTER)
ANCHOR = Anchor(global_step=AT, consumed_samples=BATCH * AT, consumed_tokens=8 * BATCH * AT)
MEANS = Means(fp32_options=("--precision=fp32",), other_node_environment={"NODE": "other"})
CONTROL, AGAIN, SKIP, OTHERS, ORDER = "control", "control-again", "skip-suspects", "skip-others", "other-order"
FP32, LOWER, WARMUP, SLW, MOMENTS, NODE = "fp32", "lower-lr", "longer-warmup", "slw", "fresh-moments", "other-node"


def question(means: Means = MEANS, incident: Incident = INCIDENT, run: Facts = RUN, **others: Any) -> Question:
    made = question_of(incident, run, COUNTED, tag=TAG, anchor=ANCHOR, means=means)
    return replace(made, **others)


def result(name: str, outcome: Any, differs: tuple[int, str] | None = None, loss: float = 3.0) -> ProbeResult:
    return ProbeResult(
        name=name,
        ended="at its end",
        outcome=outcome,
        why="",
        compared=20,
        differs_at=differs[0] if differs else None,
        differs_in=(differs[1],) if differs else (),
        losses=tuple((step, loss) for step in range(AT + 1, ALARM + 1)),
    )


SAVED = RUN.changed(
    checkpoints=tuple(Checkpoint(tag=f"global_step{n}", global_step=n, complete=True) for n in (20, 40, 50, 60))
)
