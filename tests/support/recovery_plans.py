"""A diverged run as it is observed, its incident, and plans applied to it."""

from __future__ import annotations

from dataclasses import replace

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.choose.target import Target, choose_target
from sentinel.plan.facts import Facts
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.observation import Checkpoint, JobsSeen, WriterSeen
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
from sentinel.plan.restart.decision import decide_rung
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import LrSchedule
from tests.support.facts import facts_of

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
        "baseline": BASELINE,
    }
    return Incident(**(values | changed))  # type: ignore[arg-type]


def run(*, verdict: Verdict = DIVERGED, **changed: object) -> Facts:
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
    return facts_of(verdict=verdict, **(values | changed))


def apply(state: Facts, action: Action) -> Facts:
    """What the world looks like once the action has had its effect."""
    start = state.jobs.start
    match action:
        case PrepareJob(_, rollback, _):
            return state.changed(jobs=replace(state.jobs, start=replace(start, prepared=start.prepared | {rollback})))
        case StopJob():
            return state.changed(jobs=replace(state.jobs, writers=()))
        case QuarantineCheckpoints(tags):
            return state.changed(checkpoints=tuple(c for c in state.folders.checkpoints if c.tag not in tags))
        case PointLatest(tag):
            return state.changed(latest_tag=tag)
        case CutTensorBoard(at):
            return state.changed(tensorboard_past=at.global_step)
        case WriteOverrides(overrides):
            return state.changed(overrides=overrides)
        case StartJob(_, rollback, _):
            return state.changed(jobs=replace(state.jobs, writers=(WriterSeen(id="process 43", rollback=rollback),)))
        case RestorePinned(tag):
            back = tuple(replace(c, only_pinned=False) if c.tag == tag else c for c in state.folders.checkpoints)
            return state.changed(checkpoints=back)
        case FollowBisect():
            return state
        case VerifyCheckpoint(tag):
            seen = tuple(replace(c, verified=True) if c.tag == tag else c for c in state.folders.checkpoints)
            return state.changed(checkpoints=seen)


def target_of(incident: Incident, rung: Rung, facts: Facts, policy: Policy) -> Target:
    return choose_target(incident, rung, facts.folders, facts.readings, policy)


def decision() -> Rollback:
    made = decide_rung(incident(), run(), POLICY).decision
    assert made is not None
    return made
