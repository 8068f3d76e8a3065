"""Plans: made from what is true now, so that a plan cut short is taken up where it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce

import pytest

from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.choose.ladder import Rung
from sentinel.plan.choose.policy import Policy
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.observation import JobsSeen, StartSeen, WandbSeen, WriterSeen
from sentinel.plan.restart.actions import (
    Action,
    BranchWandb,
    CutTensorBoard,
    PointLatest,
    PrepareJob,
    QuarantineCheckpoints,
    RestorePinned,
    StartJob,
    StopJob,
    VerifyCheckpoint,
    WriteOverrides,
    describe,
)
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung, plan_recovery
from sentinel.plan.restart.forecast import price
from sentinel.plan.restart.restart import plan_hang, plan_restart
from sentinel.plan.restart.rollback import ELSEWHERE, plan_rollback
from sentinel.vocabulary.errors import ConfigError
from tests.support.facts import journals_for
from tests.support.recovery_plans import LR, POLICY, apply, checkpoint, decision, incident, run, target_of


def test_by_itself_sentinel_watches_and_does_nothing() -> None:
    """What holds for a run whose owner has set nothing: docs/CONFIGURATION.md promises it."""
    told = {f.name: getattr(Policy(), f.name) for f in fields(Policy) if f.name != "ladder"}
    assert told == {
        "mode": "observe",
        "approve_within_s": 4 * 3600.0,
        "margin_steps": 10,
        "rollback_budget": 5,
        "on_contradicted": "next",
        "start_budget": 3,
        "restart": "auto",
        "park_within_s": 120.0,
        "min_remaining_s": 3600.0,
        "max_starts_per_hour": 6,
        "room_for_saves": 2,
        "pin_last_healthy": True,
        "warn": "pin",
        "lost_steps_budget": 100_000,
        "gpu_hours_budget": None,
        "quiet_hours": (),
        "cooldown_s": 0.0,
        "confirm_within_s": 900.0,
        "confirm_within_steps": 100,
        "hold_steps": 500,
        "restart_on_crash": False,
        "restart_on_hang": False,
        "stop_bad_start": False,
    }


@pytest.mark.parametrize(
    ("span", "quiet"),
    [
        ("09:05-17:30", range(9 * 60 + 5, 17 * 60 + 30)),
        ("22:00-06:00", (*range(6 * 60), *range(22 * 60, 24 * 60))),
        ("00:00-23:59", range(24 * 60 - 1)),
    ],
)
def test_quiet_hours_begin_with_their_first_minute_and_end_before_their_last(span: str, quiet: Sequence[int]) -> None:
    policy = Policy(quiet_hours=("03:00-03:00", span))
    assert [minute for minute in range(24 * 60) if policy.quiet_at(minute) is not None] == list(quiet)
    assert {policy.quiet_at(minute) for minute in quiet} == {span}


def test_a_branch_in_wandb_begins_once_after_the_job_is_stopped_and_before_it_is_started() -> None:
    def kinds(seen: WandbSeen | None) -> list[type]:
        return [type(action) for action in plan_rollback(decision(), run(wandb=seen), POLICY).actions]

    planned = kinds(WandbSeen(how="fork"))
    assert planned.index(StopJob) < planned.index(BranchWandb) < planned.index(StartJob)
    assert BranchWandb not in kinds(None)
    assert BranchWandb not in kinds(WandbSeen(how="fork", branched=frozenset({decision().id})))
    assert BranchWandb in kinds(WandbSeen(how="fork", branched=frozenset({"incident-7-r1"})))
    assert "this writes to the trainer's run" in describe(BranchWandb("rewind", 10, "incident-1", "incident-1-r1"))


def test_a_tensorboard_folder_in_a_git_work_tree_is_said_in_the_plan() -> None:
    plain, in_git = (
        next(a for a in plan_rollback(decision(), run(tensorboard_git=tree), POLICY).actions if _cuts(a))
        for tree in (None, "/shared/tr8-104B-logs")
    )
    assert "git" not in describe(plain)
    assert "lies in the git work tree /shared/tr8-104B-logs" in describe(in_git)


def test_what_is_counted_in_samples_alone_is_cut_too() -> None:
    made = decision()
    at = replace(made.overrides.anchor, consumed_samples=320)
    made = replace(made, overrides=replace(made.overrides, anchor=at))

    def cuts(samples: int) -> bool:
        seen = run(tensorboard_past=0, tensorboard_samples=samples)
        return any(map(_cuts, plan_rollback(made, seen, POLICY).actions))

    assert [cuts(samples) for samples in (0, 320, 321)] == [False, False, True]


def _cuts(action: Action) -> bool:
    return isinstance(action, CutTensorBoard)


def test_a_plan_says_of_saves_without_latest_what_a_restart_resumes_from() -> None:
    for by_newest, says in (
        (False, "point `latest` at global_step30"),
        (True, "check that global_step30 is now the newest checkpoint: there is no `latest` here"),
    ):
        actions = plan_rollback(decision(), run(by_newest=by_newest), POLICY).actions
        (pointing,) = (action for action in actions if isinstance(action, PointLatest))
        assert describe(pointing).startswith(says)


def test_trackers_that_disagree_are_rewritten_although_latest_names_the_target() -> None:
    """A trainer that goes by Megatron's number would resume from another checkpoint than `latest` says."""
    made, wrong = decision(), "the trackers disagree: latest says global_step30, latest_universal says 80"
    right = reduce(apply, plan_rollback(made, run(), POLICY).actions[:-1], run())
    assert [type(a) for a in plan_rollback(made, right, POLICY).actions] == [StartJob]
    torn = right.changed(disagreement=wrong)
    assert [type(a) for a in plan_rollback(made, torn, POLICY).actions] == [PointLatest, StartJob]
    gone = run(jobs=JobsSeen(), incidents=(), disagreement=wrong)
    plan = plan_restart(gone, Policy(mode="act", restart_on_crash=True), restarts_spent=0)
    assert [type(a) for a in plan.actions] == [PointLatest, StartJob]
    assert plan.actions[0] == PointLatest("global_step80", 80, "restart", "restart")
    assert wrong in plan.reason


@pytest.mark.parametrize(("last_step", "lost"), [(None, 50), (80, 50), (97, 67), (20, 0)])
def test_a_rollback_loses_the_steps_up_to_the_last_one_trained_wherever_it_is_told(
    last_step: int | None, lost: int
) -> None:
    """The newest checkpoint is at 80, the target at 30."""
    at = run(last_step=last_step, step_time_s=36.0, world_size=1000)
    made = decide_rung(incident(), at, POLICY).decision
    by_hand = plan_by_hand(ManualRollback(to="global_step30"), at, POLICY).decision
    assert made is not None
    assert by_hand is not None
    assert (made.lost_steps, by_hand.lost_steps, price(made, at).lost_steps) == (lost, lost, lost)
    assert (made.lost_gpu_hours, by_hand.lost_gpu_hours) == (10.0 * lost, 10.0 * lost)
    assert decide_rung(incident(), at, replace(POLICY, lost_steps_budget=lost)).decision is not None
    spent = incident(id="incident-0", rollbacks=[replace(made, lost_steps=1)], status="closed")
    refused = decide_rung(
        incident(), at.changed(incidents=(spent, incident())), replace(POLICY, lost_steps_budget=lost)
    )
    assert f"would lose {lost} steps, more than is left of the budget of {lost}" in (refused.refusal or "")


def test_a_rollback_fences_before_it_moves_and_starts_last() -> None:
    kinds = [type(action) for action in plan_rollback(decision(), run(), POLICY).actions]
    assert kinds == [StopJob, QuarantineCheckpoints, PointLatest, CutTensorBoard, WriteOverrides, StartJob]


@pytest.mark.parametrize("done", range(8))
@pytest.mark.parametrize("prepares", [False, True])
def test_a_plan_cut_short_is_taken_up_where_it_stopped(done: int, prepares: bool) -> None:
    begun = run(jobs=replace(run().jobs, start=StartSeen(prepares=prepares)))
    whole = plan_rollback(decision(), begun, POLICY).actions
    assert len(whole) == 6 + prepares
    later = reduce(apply, whole[:done], begun)
    assert plan_rollback(decision(), later, POLICY).actions == whole[done:]


def test_a_start_is_prepared_before_the_old_job_is_stopped() -> None:
    plan = plan_rollback(decision(), run(jobs=replace(run().jobs, start=StartSeen(prepares=True))), POLICY)
    assert [type(action) for action in plan.actions[:2]] == [PrepareJob, StopJob]


def test_what_nobody_can_say_counts_as_alive() -> None:
    unknown = run(jobs=JobsSeen(known=False, why_unknown="slurmctld is down"))
    for plan in (
        plan_rollback(decision(), unknown, POLICY),
        decide_rung(incident(), unknown, POLICY),
        plan_restart(unknown, Policy(mode="act", restart_on_crash=True), restarts_spent=0),
    ):
        assert plan.refusal == "job state unknown: slurmctld is down"
        assert plan.waits
        assert not plan.actions
        assert plan.decision is None  # it is made when something is known


def test_a_restart_that_could_not_save_is_not_begun() -> None:
    full = run(room_problem="/checkpoints has 1.0 GB free, and 4.0 GB are needed")
    plan = decide_rung(incident(), full, POLICY)
    assert plan.refusal == "the coming saves would find no room: /checkpoints has 1.0 GB free, and 4.0 GB are needed"
    assert plan.waits
    assert not plan.actions


@pytest.mark.parametrize(
    ("at", "quiet"),
    [("21:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("05:59", True), ("06:00", False)],
)
def test_in_quiet_hours_nothing_is_decided(at: str, quiet: bool) -> None:
    policy = replace(POLICY, quiet_hours=("22:00-06:00",))
    plan = decide_rung(incident(), run(minute_of_day=60 * int(at[:2]) + int(at[3:])), policy)
    assert (plan.refusal is not None) is quiet
    assert plan.waits is quiet


@pytest.mark.parametrize("span", ["22-6", "22:00-24:00", "22:00", "22:60-06:00", "evening"])
def test_quiet_hours_that_are_none_are_refused(span: str) -> None:
    with pytest.raises(ConfigError, match="should be two times of day"):
        Policy(quiet_hours=(span,))


def test_a_rollback_that_is_too_dear_is_a_persons_to_decide() -> None:
    large = run(step_time_s=36.0, world_size=1000)  # 10 GPU-hours a step; back from 80 to 30
    spent = incident(id="incident-0", rollbacks=[replace(decision(), lost_gpu_hours=300.0)], status="closed")
    policy = replace(POLICY, gpu_hours_budget=800.0)
    assert decide_rung(incident(), large, policy).decision is not None
    plan = decide_rung(incident(), large.changed(incidents=(spent, incident())), replace(policy, rollback_budget=9))
    assert plan.decision is not None
    dear = replace(policy, gpu_hours_budget=799.0, rollback_budget=9)
    refused = decide_rung(incident(), large.changed(incidents=(spent, incident())), dear)
    assert refused.refusal == "the rollback would cost 500 GPU-hours, and 499 are left of the budget of 799"
    assert not refused.waits
    assert (
        decide_rung(incident(), run(), replace(POLICY, gpu_hours_budget=0.0)).decision is not None
    )  # its price is not known


def test_a_target_that_only_its_pin_is_left_of_is_brought_back_first() -> None:
    there = tuple(replace(c, only_pinned=c.global_step == 30, verified=None) for c in run().folders.checkpoints)
    plan = decide_rung(incident(), run(checkpoints=there), POLICY)
    assert plan.actions == (RestorePinned("global_step30"),)
    restored = reduce(apply, plan.actions, run(checkpoints=there))
    assert decide_rung(incident(), restored, POLICY).actions == (VerifyCheckpoint("global_step30"),)


def test_a_pin_beyond_the_target_is_not_moved() -> None:
    pinned = replace(checkpoint(70), only_pinned=True)
    there = tuple(pinned if c.global_step == 70 else c for c in run().folders.checkpoints)
    actions = plan_rollback(decision(), run(checkpoints=there), POLICY).actions
    moved = next(a for a in actions if isinstance(a, QuarantineCheckpoints))
    assert "global_step70" not in moved.tags


@pytest.mark.parametrize(("spent", "least_s", "most_s"), [(1, 5, 15), (2, 10, 30), (3, 20, 60), (40, 300, 900)])
def test_restarts_after_crashes_wait_longer_and_longer(spent: int, least_s: float, most_s: float) -> None:
    gone, policy = JobsSeen(), replace(POLICY, restart_on_crash=True, start_budget=99, max_starts_per_hour=99)
    for last in (1000.0, 1000.37, 1234.5678):
        waits = [
            plan_restart(
                run(jobs=gone, incidents=(), starts_unix_s=(last,), now_unix_s=last + after_s),
                policy,
                restarts_spent=spent,
            ).refusal
            for after_s in (least_s - 1, most_s)
        ]
        assert (waits[0] or "").startswith(f"the job was started {spent} times in a row and is gone again")
        assert waits[1] is None


def test_the_first_restart_after_a_crash_does_not_wait() -> None:
    state = run(jobs=JobsSeen(), incidents=(), starts_unix_s=(1999.0,))
    assert plan_restart(state, replace(POLICY, restart_on_crash=True), restarts_spent=0).refusal is None


def test_what_a_rollback_loses_is_counted_from_the_line_in_force() -> None:
    """After an undo the newest attempt is not the line that `latest` names."""
    state = run(last_step=140, trained_to=88)
    assert price(decision(), state).lost_steps == 58


def test_elsewhere_is_refused_by_its_own_name() -> None:
    away = run(jobs=JobsSeen(known=False, why_unknown="out of sight", elsewhere=True))
    refused = (plan_rollback(decision(), away, POLICY), decide_rung(incident(), away, POLICY))
    assert {plan.refusal for plan in refused} == {ELSEWHERE}


def test_an_old_job_that_comes_back_beside_ours_is_stopped_and_ours_is_not() -> None:
    ours = replace(decision(), known_jobs=("job 7",))
    requeued = JobsSeen(writers=(WriterSeen(id="job 7"), WriterSeen(id="job 9", rollback=ours.id)))
    assert plan_rollback(ours, run(jobs=requeued), POLICY).actions == (StopJob(("job 7",), except_for=ours.id),)


def test_jobs_that_were_submitted_in_part_are_completed() -> None:
    ours = decision()
    writers = (WriterSeen(id="job 7", rollback=ours.id, pending=True),)
    half = run(jobs=JobsSeen(writers=writers, incomplete=frozenset({ours.id})))
    assert plan_rollback(ours, half, POLICY).actions == (StartJob("incident-1", ours.id),)
    assert plan_rollback(ours, run(jobs=JobsSeen(writers=writers)), POLICY).actions == ()


def test_a_successors_checkpoints_are_never_moved() -> None:
    ours = decision()
    later = reduce(apply, plan_rollback(ours, run(), POLICY).actions, run())
    grown = later.changed(checkpoints=(*later.folders.checkpoints, checkpoint(50)), latest_tag="global_step50")
    assert plan_rollback(ours, grown, POLICY).actions == ()
    crashed = grown.changed(jobs=JobsSeen(), journals=journals_for(ours.id))
    assert plan_rollback(ours, crashed, POLICY).actions == ()


def test_the_target_counts_back_from_the_early_end_of_the_onset() -> None:
    target = target_of(incident(), POLICY.ladder_for(None)[0], run(), POLICY)
    assert target.tag == "global_step30"  # 47 - 10 = 37


def test_an_incomplete_or_unsound_checkpoint_is_no_target() -> None:
    found = (checkpoint(10), checkpoint(20, verified=False), checkpoint(30, complete=False), checkpoint(40))
    assert target_of(incident(), POLICY.ladder_for(None)[0], run(checkpoints=found), POLICY).tag == "global_step10"


def test_the_margin_grows_with_each_rung_that_failed_and_never_comes_nearer_again() -> None:
    earlier = Rung(name="earlier", hypothesis="…", target="earlier", reseed=True)
    far = {"id": "incident-1", "onset_range": (700, 700)}
    states = run(checkpoints=tuple(checkpoint(step) for step in range(10, 800, 10)))
    tried = replace(decision(), target_step=690)
    steps = [
        target_of(incident(**far, rollbacks=[tried] * failed), earlier, states, POLICY).global_step
        for failed in range(4)
    ]
    assert steps == [690, 680, 660, 620]
    near = target_of(
        incident(**far, rollbacks=[replace(tried, target_step=100)]), POLICY.ladder_for(None)[0], states, POLICY
    )
    assert near.global_step == 100


def test_in_the_risky_time_earlier_is_before_the_upper_half_of_the_lr_ramp() -> None:
    earlier = Rung(name="earlier", hypothesis="…", target="earlier", reseed=True)
    assert target_of(incident(), earlier, run(), POLICY).tag == "global_step10"


def test_without_a_checkpoint_before_the_onset_it_starts_from_scratch() -> None:
    target = target_of(incident(onset_range=(12, 12)), POLICY.ladder_for(None)[0], run(), POLICY)
    assert (target.tag, target.global_step) == (None, 0)


def test_a_target_not_yet_verified_is_verified_before_anything_is_decided() -> None:
    unread = run(checkpoints=tuple(checkpoint(step, verified=None) for step in range(10, 90, 10)))
    plan = decide_rung(incident(), unread, POLICY)
    assert plan.actions == (VerifyCheckpoint("global_step30"),)
    assert plan.decision is None


def test_a_target_gone_bad_after_the_decision_is_refused() -> None:
    bad = tuple(replace(c, verified=False, problem="a CRC is wrong") for c in run().folders.checkpoints)
    plan = plan_rollback(decision(), run(checkpoints=bad), POLICY)
    assert not plan.actions
    assert plan.refusal is not None
    assert "a CRC is wrong" in plan.refusal


def test_the_decision_says_what_is_changed_from_the_runs_own_settings() -> None:
    rung = Rung(name="warmup x8", hypothesis="…", target="before_risky_window", reseed=True, lr_warmup_factor=8)
    made = decide_rung(incident(), run(), Policy(mode="act", ladder=(rung,))).decision
    assert made is not None
    assert made.overrides.standing.lr == replace(LR, warmup=160, anchor=10)
    assert made.overrides.once is not None
    assert made.overrides.once.seed == 4
    assert made.changes == (
        "seed 3 -> 4 for the data not yet consumed",
        "LR warmup 20 -> 160 steps from 10",
        "with it the largest LR to come 0.015 -> 0.00601, at step 107: the decay goes on",
    )
    assert made.lost_steps == 70


@pytest.mark.parametrize(
    ("policy", "changed", "says"),
    [
        (Policy(rollback_budget=0), {}, "budget of 0 is spent"),
        (Policy(ladder=()), {}, "the ladder's 0 rungs are used up"),
        (Policy(), {"paused": True}, "paused"),
        (Policy(), {"kill_file": True}, "KILL"),
        (Policy(lost_steps_budget=49), {}, "would lose 50 steps"),
    ],
)
def test_a_refusal_is_a_sentence_and_has_no_actions(policy: Policy, changed: dict[str, object], says: str) -> None:
    plan = decide_rung(incident(), run(**changed), policy)
    assert plan.refusal is not None
    assert says in plan.refusal
    assert not plan.actions
    assert plan.decision is None


@pytest.mark.parametrize(
    ("changed", "spent", "says"),
    [
        ({}, 0, None),
        ({"paused": True}, 0, "paused"),
        ({"kill_file": True}, 0, "KILL"),
        ({}, 1, None),
        ({}, 2, "the job was started again 2 times"),
    ],
)
def test_a_crash_and_a_hang_are_restarted_unless_a_person_or_the_budget_says_no(
    changed: dict[str, object], spent: int, says: str | None
) -> None:
    policy = Policy(mode="act", restart_on_crash=True, restart_on_hang=True, start_budget=2)
    gone, hangs = run(jobs=JobsSeen(), incidents=(), **changed), run(incidents=(), **changed)
    crashed = plan_restart(gone, policy, restarts_spent=spent)
    for plan in (crashed, plan_hang(hangs, policy, restarts_spent=spent)):
        assert (plan.refusal is None, bool(plan.actions)) == (says is None, says is None)
        assert says is None or says in str(plan.refusal)


def test_the_cooldown_counts_from_the_last_decision() -> None:
    tried = incident(rollbacks=[replace(decision(), failed="diverged again", decided_unix_s=1990.0)])
    plan = decide_rung(tried, run(incidents=(tried,)), Policy(cooldown_s=60))
    assert plan.refusal is not None
    assert "50 s of cooldown" in plan.refusal
    assert plan.waits


def test_a_rung_that_needs_what_nobody_reported_is_skipped() -> None:
    rung = Rung(name="warmup", hypothesis="…", lr_warmup_factor=8)
    plan = decide_rung(incident(baseline=Baseline(seed=3)), run(), Policy(ladder=(rung,)))
    assert plan.skip is not None
    assert "has not reported its LR schedule" in plan.skip.reason
    assert (plan.decision, plan.refusal, plan.actions) == (None, None, ())


@pytest.mark.parametrize("kind", [k for k in VerdictKind if k is not VerdictKind.DIVERGED])
def test_only_a_divergence_leads_to_a_rollback(kind: VerdictKind) -> None:
    plan = plan_recovery(run().changed(verdict=Verdict(kind=kind, reason="…")), POLICY)
    assert plan.actions == ()
    assert plan.decision is None
    assert plan_recovery(run(), POLICY).decision is not None


def test_a_job_that_never_reports_is_not_started_for_ever() -> None:
    plan = plan_rollback(replace(decision(), starts=3), run(jobs=JobsSeen()), POLICY)
    assert plan.refusal is not None
    assert "never reported a start" in plan.refusal


def test_a_crash_goes_on_from_the_last_whole_checkpoint_and_rolls_nothing_back() -> None:
    policy = Policy(mode="act", restart_on_crash=True)
    down = run(jobs=JobsSeen(), incidents=(), checkpoints=(checkpoint(10), checkpoint(20, complete=False)))
    assert plan_restart(down.changed(latest_tag="global_step10"), policy, restarts_spent=0).actions == (
        StartJob(None, None),
    )
    torn = plan_restart(down.changed(latest_tag=""), policy, restarts_spent=0)
    assert [type(a) for a in torn.actions] == [PointLatest, StartJob]
    assert plan_restart(down, policy, restarts_spent=3).refusal is not None
    assert plan_restart(down, Policy(mode="act"), restarts_spent=0).refusal is not None
    alive = run(incidents=())
    assert plan_restart(alive, policy, restarts_spent=0).actions == ()


def test_a_rollback_whose_job_was_seen_is_not_unfinished_whatever_the_log_had_no_time_to_say() -> None:
    """What that job has written since must not be taken back, as if it had been a rollback cut short."""
    decision = decide_rung(incident(), run(), POLICY).decision
    assert decision is not None
    cut_short = run(incidents=(incident(status="decided", rollbacks=[replace(decision, begun=True)]),))
    assert [i.id for i in cut_short.unfinished] == ["incident-1"]
    assert cut_short.changed(journals=journals_for(decision.id)).unfinished == ()
    alive = JobsSeen(writers=(WriterSeen(id="process 43", rollback=decision.id),))
    assert cut_short.changed(jobs=alive).unfinished == ()
    undone_half_way = incident(status="closed", rollbacks=[replace(decision, applied=True)], undoing="incident-1")
    assert [i.id for i in run(incidents=(undone_half_way,)).unfinished] == ["incident-1"]
