"""What it costs a run to wait for its open spike, against rolling back now; and `wait = "priced"`, which acts on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentinel.judge.events import EventKind
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.forecast import gpu_hours, lost_steps
from sentinel.plan.observation import RunState
from sentinel.plan.policy import Policy
from sentinel.plan.target import healthy_until
from sentinel.plan.waiting import Moment, Waiting, is_over, moment_of, odds_of, priced
from sentinel.vocabulary.codec import Described


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPrice(Described):
    """Of one open spike. Steps, and GPU-hours where the run's pace and size are known."""

    act_steps: float  # what rolling back now throws away, and the restart's time where the pace is known
    act_gpu_hours: float | None
    wait_steps: float | None  # what waiting costs on average; None where the odds are unknown, or it is in vain
    wait_gpu_hours: float | None
    wait_until_step: int | None  # the step until which waiting is cheapest on average
    never_share: float | None  # probability that the loss does not come back by itself
    rollback_is_cheaper: bool | None  # None where the odds are unknown
    reason: str


def price_of_waiting(
    series: Series, run: RunState, policy: Policy, *, target_step: int | None = None
) -> WaitingPrice | None:
    """`target_step`: of the rollback that is compared with; by default the last healthy checkpoint before the onset.
    None where no spike is open and the weights are numbers."""
    moment, alarm = moment_of(series), series.alarm
    if alarm is not None and alarm.kind is EventKind.NAN:
        return _in_vain(_act_steps(alarm.onset_range[0], run, policy, target_step), run)
    if moment is None:
        return None
    waiting = _waiting(moment, run, policy, target_step)
    wait = waiting.wait_steps
    return WaitingPrice(
        act_steps=waiting.act_steps,
        act_gpu_hours=gpu_hours(waiting.act_steps, run),
        wait_steps=wait,
        wait_gpu_hours=None if wait is None else gpu_hours(wait, run),
        wait_until_step=waiting.wait_until,
        never_share=None if waiting.odds is None else waiting.odds.never,
        rollback_is_cheaper=None if wait is None else waiting.rollback_is_cheaper,
        reason=_sentence(moment, waiting, run),
    )


def priced_verdict(verdict: Verdict, series: Series, run: RunState, policy: Policy) -> Verdict:
    """Under `wait = "priced"`, diverged where the price ends the wait for an open spike; else the judge's verdict."""
    moment = moment_of(series) if policy.wait == "priced" and verdict.kind is VerdictKind.SPIKE else None
    if moment is None or not is_over(moment, waiting := _waiting(moment, run, policy, None)):
        return verdict
    reason = f"{verdict.reason}; {_sentence(moment, waiting, run)}"
    said = replace(verdict, kind=VerdictKind.DIVERGED, reason=reason, alarm_step=moment.step)
    known = next((e for e in series.events if e.onset_range == moment.onset_range and e.end_step is None), None)
    return said if known is None else replace(said, led_by=known.led_by, led_by_steps=known.led_by_steps)


def _in_vain(act_steps: float, run: RunState) -> WaitingPrice:
    cost = f"{act_steps:.0f} steps{_hours(act_steps, run)}"
    return WaitingPrice(
        act_steps=act_steps,
        act_gpu_hours=gpu_hours(act_steps, run),
        wait_steps=None,
        wait_gpu_hours=None,
        wait_until_step=None,
        never_share=1.0,
        rollback_is_cheaper=True,
        reason=f"waiting is in vain: the weights contain nan and do not recover. A rollback now costs {cost}",
    )


def _act_steps(onset: int, run: RunState, policy: Policy, target_step: int | None) -> float:
    """What a rollback now throws away, and the restart's time."""
    if target_step is None:
        whole, _ = healthy_until(onset - policy.margin_steps, run)
        target_step = whole[-1].global_step if whole else 0
    return lost_steps(target_step, run) + (policy.restart_s / run.step_time_s if run.step_time_s else 0.0)


def _waiting(moment: Moment, run: RunState, policy: Policy, target_step: int | None) -> Waiting:
    return priced(moment, odds_of(moment), _act_steps(moment.onset_range[0], run, policy, target_step))


def _sentence(moment: Moment, waiting: Waiting, run: RunState) -> str:
    odds = waiting.odds
    if odds is None or waiting.wait_steps is None:
        return "too few spikes of this size and age are known to price waiting"
    cheaper = "rolling back now is cheaper" if waiting.rollback_is_cheaper else "waiting is cheaper"
    own = f", {odds.own} of this run's own did come back" if odds.own else ""
    act, wait = (f"{steps:.0f} steps{_hours(steps, run)}" for steps in (waiting.act_steps, waiting.wait_steps))
    return (
        f"{cheaper}: of {odds.pooled} pooled spikes that looked so after {moment.age:.0f} steps {odds.pooled_never} "
        f"never came back{own}; {odds.never:.0%} are expected not to. A rollback now costs {act}; waiting until step "
        f"{waiting.wait_until} costs {wait} on average"
    )


def _hours(steps: float, run: RunState) -> str:
    hours = gpu_hours(steps, run)
    return "" if hours is None else f" ({hours:.3g} GPU-hours)"
