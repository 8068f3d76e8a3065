"""Situations of every kind, and all that is planned in them: `python -m tests.plan.planned_situations [SEED ...]`.

The record, tests/data/planned_situations.txt, is what an upgrade may not change by accident: the same run in the same
state has the same target, changes, actions, price and refusals as before. A change on purpose is seen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.judge.verdict import Verdict, VerdictKind, judge
from sentinel.plan.choose.policy import Policy
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Rollback, digest_of
from sentinel.plan.incident.other_rungs import Wait
from sentinel.plan.observation import JobsSeen
from sentinel.plan.restart.actions import describe
from sentinel.plan.restart.by_hand import ManualRollback, plan_by_hand
from sentinel.plan.restart.decision import decide_rung, has_not_healed, plan_recovery
from sentinel.plan.restart.forecast import coming_saves, price, unconfirmed
from sentinel.plan.restart.liveness import life_of
from sentinel.plan.restart.restart import plan_hang, plan_restart
from sentinel.plan.restart.rollback import Plan, plan_rollback
from sentinel.plan.starts.evidence import Evidence
from sentinel.plan.starts.proof import Check, outcome, prove
from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import RunStarted, Sample
from tests.plan.drawn_situations import OURS, Drawn
from tests.records import Record

__all__ = ["RECORD", "said", "short"]


def _judged() -> Iterator[Series]:
    """One that has seen nothing, few samples, a healthy run, a spike and a divergence."""
    for n in (0, 3, 200, 203, 400):
        losses = [3.0 + 0.01 * (step % 3) + 2.0 * (step > 200) for step in range(1, n + 1)]
        yield Series(
            Thresholds(), [Sample(attempt=1, global_step=s, time_unix_s=0.0, loss=x) for s, x in enumerate(losses, 1)]
        )


JUDGED = tuple(_judged())


def _attempt_of(drawn: Drawn, made: Rollback) -> Evidence:
    """What an attempt might show that was started for the decision: mostly what was decided."""
    standing, once, at = made.overrides.standing, made.overrides.once, made.overrides.anchor
    step = made.target_step if drawn.rng.random() < 0.8 else made.target_step + 40
    wrong = drawn.one("", "", "", "lr", "seed", "seqlen", "clip", "record", "free")
    lr, free = standing.lr, standing.free
    skip = (once.skip_samples or 0) if once else 0
    started = RunStarted(
        attempt=3,
        time_unix_s=0.0,
        resumed_from=drawn.maybe(step, 0.95) or None,
        rollback=drawn.maybe(made.id if wrong != "record" else "incident-6-r1", 0.95),
        applied_once=(made.id,) if once and wrong != "record" else (),
        seed=drawn.maybe(once.seed if once and wrong != "seed" else 3),
        first_sample_index=drawn.maybe((at.consumed_samples or 0) + skip + (wrong == "record"), 0.8),
        skipped_samples=drawn.maybe(skip + sum(r.end - r.begin for r in standing.skipped or ())),
        skipped_ranges=drawn.maybe(tuple({"begin": r.begin, "end": r.end} for r in standing.skipped or ()), 0.3),
        consumed_tokens=at.consumed_tokens,
        effective_tokens=drawn.maybe(40_000, 0.1),
        lr=drawn.maybe(lr.lr(step=step + 1, consumed_tokens=at.consumed_tokens or 0)) if lr else None,
        lr_schedule=drawn.maybe((replace(lr, peak=2 * lr.peak) if wrong == "lr" else lr).to_json()) if lr else None,
        seqlen=drawn.maybe(128 if wrong == "seqlen" else 8),
        seqlen_schedule=drawn.maybe(standing.seqlen.to_json()) if standing.seqlen else None,
        seqlen_shortening=drawn.maybe(standing.shorten),
        batch_size_schedule=drawn.maybe(standing.batch_size.to_json()) if standing.batch_size else None,
        adam_beta1=drawn.maybe(standing.adam_beta1),
        adam_beta2=drawn.maybe(standing.adam_beta2),
        weight_decay=drawn.maybe(standing.weight_decay),
        gradient_clipping=drawn.maybe(7.0 if wrong == "clip" else standing.clip_grad),
        loss_scale=drawn.maybe(once.loss_scale if once else None),
        moments_reset_steps=drawn.maybe((at.global_step,) if wrong != "record" else ()),
        free=drawn.maybe(free.to_json() if free and wrong != "free" else {"options": []}, 0.4),
        total_steps=drawn.maybe(2000, 0.3),
        total_tokens=drawn.maybe(standing.total_tokens),
        from_arguments=drawn.one((), None, ("gradient_clipping", "adam_beta2", "lr_schedule", "seed")),
        settings=drawn.one({}, {"learning_rate": 1e-2, "beta1": "0.9", "x": 2, "max_grad_norm": 1.0}),
    )
    rate = {at: lr.lr(step=at) * (1 + (wrong == "lr")) for at in range(step + 1, step + 4)} if lr else {}
    samples = [
        Sample(
            attempt=3,
            global_step=at,
            time_unix_s=0.0,
            loss=3.0,
            lr=rate.get(at) if drawn.rng.random() < 0.8 else None,
            seqlen=drawn.maybe(standing.seqlen.foreseen(at) if standing.seqlen and wrong != "seqlen" else 128, 0.8),
            lr_warmup_steps=drawn.maybe(20, 0.3),
            loss_scale=drawn.maybe(1024.0, 0.3),
        )
        for at in range(step + 1, step + 4)
    ]
    before = drawn.one({}, dict.fromkeys(rate, 1e-3), rate)
    return Evidence(
        started=started, samples=tuple(samples[: drawn.one(0, 3)]), before=drawn.maybe(started), lr_before=before
    )


def said(name: str) -> str:
    """All that is planned in the situation of that seed."""
    return "\n".join(_lines(Drawn(int(name))))


def _lines(drawn: Drawn) -> Iterator[str]:
    try:
        yield f"rung: {short(drawn.rung())}"
    except ConfigError as error:
        yield f"no rung: {error}"
    policy = drawn.policy()
    incident = drawn.incident(())
    run = drawn.run(incident)
    verdict = Verdict(
        kind=drawn.one(*[VerdictKind.DIVERGED] * 20, *VerdictKind),
        reason="so it is",
        onset_range=drawn.maybe(incident.onset_range or (47, 49)),
    )
    yield f"verdict: {short(judge(drawn.one(*JUDGED), drawn.context(), Thresholds()))}"
    plain = run.changed(jobs=JobsSeen(), attempts=(), files_seen=(), paused=False, kill_file=False, minute_of_day=None)
    for number in range(1, drawn.one(1, 1, 2, 3)):  # what was tried before, where anything could be
        made = decide_rung(incident, plain.changed(incidents=()), replace(policy, cooldown_s=0.0)).decision
        if made is not None:
            made.lost_gpu_hours = drawn.maybe(0.3)
            made.after_attempt, made.known_jobs = 2, ("job 33", "job 34")  # all that is drawn was there before
            made.failed, made.begun = f"diverged again, the {number}. time", True
            incident.rollbacks.append(made)
    for _ in range(3):
        files_seen = tuple(drawn.file_seen(drawn.one(None, 1, 2)) for _ in range(drawn.one(1, 2)))
        seen = run.changed(jobs=drawn.jobs(), attempts=(drawn.attempt(1), drawn.attempt(2))[: drawn.one(0, 1, 2)])
        both = [
            life_of(seen.changed(files_seen=files_seen).liveness, except_for=except_for) for except_for in (None, OURS)
        ]
        yield f"lives: {'; '.join(known.sentence[:90] for known in both)}"
    if incident.rollbacks and drawn.maybe(True, 0.7):
        left = incident.rollbacks[-1].overrides
        since = drawn.one(left.anchor, *(Anchor(global_step=c.global_step) for c in run.folders.checkpoints[-3:]))
        run = run.changed(overrides=replace(left, anchor=since))
    yield f"life: {short(life_of(run.liveness))}"
    known = short(life_of(run.liveness, except_for=OURS))
    yield f"spared: {known}; next {run.next_incident}{'; unfinished' * len(run.unfinished)}"
    yield from _plan("recovery", plan_recovery(run.changed(verdict=verdict), policy))
    yield from _plan("restart", plan_restart(run, policy, restarts_spent=drawn.one(0, 0, 2, 3), hung=drawn.odd()))
    yield from _plan("hang", plan_hang(run, policy, restarts_spent=drawn.one(0, 0, 2, 3)))
    yield from _by_hand(drawn, verdict, run, policy)
    wait = Wait(rung="w", hypothesis="…", from_step=80, until_step=drawn.one(88, 89))
    yield f"wait: {has_not_healed(wait, run.changed(verdict=verdict))}"
    made = decide_rung(incident, plain, policy).decision
    if made is not None:
        made.after_attempt, made.known_jobs = 2, ("job 33", "job 34")
        yield from _decision(drawn, made, run, policy)


def _by_hand(drawn: Drawn, verdict: Verdict, run: Facts, policy: Policy) -> Iterator[str]:
    wanted = ManualRollback(
        to=drawn.one("scratch", "global_step25", "global_step50", "global_step75"),
        rung=drawn.maybe(drawn.one("rung 1", "rung 1", "rung 2", "rung 9"), 0.7),
        seed=drawn.maybe(77, 0.3),
        start=not drawn.odd(),
        force=drawn.rng.random() < 0.3,
    )
    yield from _plan(short(wanted), plan_by_hand(wanted, run.changed(verdict=verdict), policy))


def _plan(what: str, plan: Plan) -> Iterator[str]:
    yield f"{what}: {plan.refusal or ''}{' (waits)' * plan.waits} {plan.reason} {short(plan.skip or plan.wait)}"
    yield from (f"  {describe(action)} {'follow-up' * getattr(action, 'follow_up', False)}" for action in plan.actions)
    if plan.decision is not None:
        yield f"  decided: {plan.decision.id} {plan.decision.rung}, {plan.decision.target_tag}"


def _decision(drawn: Drawn, made: Rollback, run: Facts, policy: Policy) -> Iterator[str]:
    """What the decision is, what it costs, how it is carried out in any state, and what a restart proves of it."""
    yield f"decision: {short(made)}"
    yield f"digest {digest_of(made)[:12]}; {short(price(made, run))}"
    yield from (f"not confirmed: {sentence}" for sentence in unconfirmed(made, run))
    yield from (f"coming {save}" for save in coming_saves(made, run))
    made.starts = drawn.one(0, 0, 1, 3)
    yield from _plan("rollback", plan_rollback(made, run, policy))
    made.in_script = drawn.odd()
    try:
        checks = prove(made, _attempt_of(drawn, made), run.settings.baseline)
    except SentinelError as error:
        yield f"no proof: {error}"
        return
    yield f"proof: {outcome(checks)}"
    yield from (
        f"  {c.what}: {c.answer}, {short(c.reported)}{_wanted(c)}{', ' + c.why if c.why else ''}" for c in checks
    )


def _wanted(check: Check) -> str:
    """What was to be seen, where it was not; and whether that is a change."""
    return ("" if check.reported == check.expected else f" for {short(check.expected)}") + " (kept)" * (
        not check.changed
    )


def short(value: object) -> str:
    """A value with what is set of it, numbers to six digits: short, and it shows every difference."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {short(held)}" for key, held in value.items() if held is not None) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(short, value)) + "]"
    if not hasattr(value, "__dataclass_fields__"):
        return "-" if value is None else str(value)
    told = {f.name: held for f in fields(value) if (held := getattr(value, f.name)) != f.default}
    return type(value).__name__ + short({key: held for key, held in told.items() if held not in ((), [])})


RECORD = Record("planned_situations.txt", said)

if __name__ == "__main__":
    RECORD.write()
