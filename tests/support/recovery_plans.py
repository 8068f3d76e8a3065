"""A diverged run as it is observed, its incident, and plans applied to it."""

from __future__ import annotations

from dataclasses import replace

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.observation import Checkpoint, JobsSeen, RunState, WriterSeen
from sentinel.plan.restart.actions import (
    Action,
    CutTensorBoard,
    FollowBisect,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    RestorePinned,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
)
from sentinel.plan.restart.decision import decide
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import LrSchedule

LR = LrSchedule(peak=1.5e-2, warmup=20, decay_start=20, decay_end=240)
BASELINE = Baseline(seed=3, lr=LR, seqlen=None, full_seqlen=128)
DIVERGED = Verdict(kind=VerdictKind.DIVERGED, reason="it does not come back", onset_range=(47, 49), alarm_step=88)
POLICY = Policy(mode="act")


def checkpoint(step: int, *, complete: bool = True, verified: bool | None = True) -> Checkpoint:
    return Checkpoint(tag=f"global_step{step}", global_step=step, complete=complete, verified=verified)


def incident(**changed: object) -> Incident:
    values: dict[str, object] = {
        "id": "incident-1",
        "opened_unix_s": 1000.0,
        "attempt": 1,
        "onset_range": (47, 49),
        "alarm_step": 88,
        "onset_tokens": 49 * 2048,
        "best_mean": 3.6,
        "reason": "it does not come back",
        "led_by": ("adam_variance_l1",),
        "baseline": BASELINE,
    }
    return Incident(**(values | changed))  # type: ignore[arg-type]


def run(**changed: object) -> RunState:
    values: dict[str, object] = {
        "now_unix_s": 2000.0,
        "jobs": JobsSeen(writers=(WriterSeen(id="process 41"), WriterSeen(id="process 42"))),
        "checkpoints": tuple(checkpoint(step) for step in range(10, 90, 10)),
        "latest_tag": "global_step80",
        "overrides": None,
        "tensorboard_past": 88,
        "baseline": BASELINE,
        "seeds_used": frozenset({3}),
        "positions": {s: Anchor(global_step=s, consumed_samples=16 * s, consumed_tokens=2048 * s) for s in range(99)},
        "incidents": (incident(),),
    }
    return RunState(**(values | changed))  # type: ignore[arg-type]


def apply(state: RunState, action: Action) -> RunState:
    """What the world looks like once the action has had its effect."""
    match action:
        case PrepareJob(_, rollback, _):
            return replace(state, jobs=replace(state.jobs, prepared=state.jobs.prepared | {rollback}))
        case StopJob():
            return replace(state, jobs=replace(state.jobs, writers=()))
        case QuarantineCheckpoints(tags):
            return replace(state, checkpoints=tuple(c for c in state.checkpoints if c.tag not in tags))
        case PointLatest(tag):
            return replace(state, latest_tag=tag)
        case CutTensorBoard(at):
            return replace(state, tensorboard_past=at.global_step)
        case WriteOverrides(overrides):
            return replace(state, overrides=overrides)
        case StartJob(_, rollback, _):
            return replace(state, jobs=replace(state.jobs, writers=(WriterSeen(id="process 43", rollback=rollback),)))
        case RestorePinned(tag):
            back = tuple(replace(c, only_pinned=False) if c.tag == tag else c for c in state.checkpoints)
            return replace(state, checkpoints=back)
        case FollowBisect():
            return state
        case VerifyCheckpoint(tag):
            seen = tuple(replace(c, verified=True) if c.tag == tag else c for c in state.checkpoints)
            return replace(state, checkpoints=seen)


def decision() -> Rollback:
    made = decide(incident(), run(), POLICY).decision
    assert made is not None
    return made
