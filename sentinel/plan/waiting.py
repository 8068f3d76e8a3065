"""Waiting for a spike to come back, or rolling back now: which of the two costs less on average; and `wait = "priced"`,
which acts on it. Pure.

The odds come from pooled spikes (`pooled_spikes.py`: how many of this size and age never came back, how soon the others
did) and from this run's own. Rolling back at an age throws away the steps from the target to there, and the restart's
time. Waiting until a later age throws away as much and those steps too, but nothing if the loss is back by then.

Rollback now: steps since the target + restart. Waiting d steps: s(d) x (steps since the target + restart + d), where
s(d) is the share of the pooled spikes of this kind and age that is not back d steps later. Kind: whether the median
of the last 8 losses is above the band's edge, and whether it falls back, else whether another signal has left its
band. Of the run's own spikes, those that lasted as long and came back weigh against all pooled ones n : 1.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

from sentinel.judge.events import EventKind
from sentinel.judge.series import Series
from sentinel.judge.verdict import Verdict, VerdictKind
from sentinel.plan.forecast import gpu_hours, lost_steps
from sentinel.plan.observation import RunState
from sentinel.plan.policy import Policy
from sentinel.plan.pooled_spikes import AGES, POOLED, SIZES, Table
from sentinel.plan.target import healthy_until
from sentinel.vocabulary.codec import Described

_STEPS_A_SAMPLE = 20  # A sample is worth at most so many steps of an age, as five are worth a patience of 100 steps
_OWN_WEIGHT = 1.0  # Spikes of this run that weigh as much as the pooled ones
_LEAST_SPIKES, _LEAST_FAMILIES = 5, 3  # Pooled spikes of a kind and age, and families of runs; unknown below that
_EARLIEST = 0.25  # Patiences before which a priced wait never ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An open spike, as it is known at a step."""

    step: int
    onset_range: tuple[int, int]
    stands: bool  # whether the judge would call it a divergence now with a quarter of its patience
    size: float  # how far the median of the last 8 is above the level; 1 is the edge of the noise band
    agrees: bool  # whether another signal has left its band too
    falling: bool  # whether the loss is on its way back, by its course so far
    own_ages: tuple[float, ...]  # ages at which the run's own spikes came back, the last 64
    pace: float  # steps that a unit of age lasts: 1, or more where samples are further apart than 20 steps

    @property
    def age(self) -> float:
        """Steps since the late end of the onset; 20 times the samples where that is less."""
        return (self.step - self.onset_range[1]) / self.pace

    @property
    def kind(self) -> tuple[int, str]:
        return bisect_right(SIZES, self.size), "falling" if self.falling else "agreed" if self.agrees else "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Odds:
    never: float  # probability that the loss does not come back by itself
    unhealed: tuple[tuple[int, float], ...]  # (so much older, probability that it is not back by then), ascending
    pooled: int  # pooled spikes of this size that lasted as long
    pooled_never: int
    own: int  # spikes of this run that lasted as long and came back


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPrice(Described):
    """Of one open spike. Steps, and GPU-hours where the run's pace and size are known."""

    act_steps: float  # what rolling back now throws away, and the restart's time where the pace is known
    act_gpu_hours: float | None = None
    wait_steps: float | None = None  # what waiting costs on average, rolled back at the best later step if not healed
    wait_gpu_hours: float | None = None  # None, as the steps: the odds are unknown, or waiting is in vain
    wait_until_step: int | None = None  # the step until which waiting is cheapest on average
    never_share: float | None = None  # probability that the loss does not come back by itself
    rollback_is_cheaper: bool | None = None  # None where the odds are unknown: that never acts
    reason: str = ""


def moment_of(series: Series) -> Moment | None:
    """None where no spike is open, or too little of it is known."""
    episode, known, step = series.episode, series.known, series.last_step
    if episode is None or step is None or not episode.recent or episode.upper <= episode.level:
        return None
    late = episode.onset_range[1]
    pace = max(1.0, (step - late) / (_STEPS_A_SAMPLE * episode.samples))
    patience_steps = max(1, round(_EARLIEST * known.patience_steps))
    return Moment(
        step=step,
        onset_range=episode.onset_range,
        stands=episode.stands(known.thresholds, step, patience_steps, known.regime.widened),
        size=(episode.stands_at - episode.level) / (episode.upper - episode.level),
        agrees=known.leading.agree(episode.onset_range, step, episode.samples),
        falling=episode.on_its_way_back(known.thresholds, step),
        own_ages=tuple((end - onset) / pace for onset, end in series.healed),
        pace=pace,
    )


def odds_of(moment: Moment, table: Table = POOLED) -> Odds | None:
    """None: unknown. The run's own spikes that lasted as long and came back count beside the pooled ones, which
    together weigh as much as one of them."""
    row = max(0, bisect_right(AGES, moment.age) - 1)
    cell = table[moment.kind][row]
    if cell.spikes < _LEAST_SPIKES or cell.families < _LEAST_FAMILIES:
        return None
    own = [age for age in moment.own_ages if age >= moment.age]
    share = _OWN_WEIGHT / (_OWN_WEIGHT + len(own))
    ages = AGES[row + 1 :]
    back = accumulate(cell.healed_by)
    at_own = [sum(age <= until for age in own) / max(1, len(own)) for until in ages]
    left = [1 - share * pooled - (1 - share) * mine for pooled, mine in zip(back, at_own, strict=True)]
    return Odds(
        never=share * cell.never,
        unhealed=tuple((until - AGES[row], unhealed) for until, unhealed in zip(ages, left, strict=True)),
        pooled=cell.spikes,
        pooled_never=cell.spikes_never,
        own=len(own),
    )


def priced(moment: Moment, odds: Odds | None, act: float) -> WaitingPrice:
    """In steps alone. `act`: what a rollback now costs: the steps since the target, and the restart's time."""
    never = None if odds is None else odds.never
    if odds is None or not odds.unhealed:
        return WaitingPrice(act_steps=act, never_share=never)
    wait, older = min((unhealed * (act + older * moment.pace), older) for older, unhealed in odds.unhealed)
    until = moment.step + round(older * moment.pace)
    cheaper = act <= wait
    return WaitingPrice(
        act_steps=act, wait_steps=wait, wait_until_step=until, never_share=never, rollback_is_cheaper=cheaper
    )


def is_over(moment: Moment, price: WaitingPrice) -> bool:
    """Whether `wait = "priced"` ends the wait before the judge's patience does: by the price, and on the evidence that
    the judge asks for after a quarter of that patience."""
    return moment.stands and bool(price.rollback_is_cheaper)


def price_of_waiting(
    series: Series, run: RunState, policy: Policy, *, target_step: int | None = None
) -> WaitingPrice | None:
    """`target_step`: of the rollback that is compared with; by default the last healthy checkpoint before the onset.
    None where no spike is open and the weights are numbers."""
    moment, alarm = moment_of(series), series.alarm
    if alarm is not None and alarm.kind is EventKind.NAN:
        price = WaitingPrice(
            act_steps=_act_steps(alarm.onset_range[0], run, policy, target_step),
            never_share=1.0,
            rollback_is_cheaper=True,
        )
        in_vain = "waiting is in vain: the weights contain nan and do not recover. A rollback now costs"
        price = replace(price, reason=f"{in_vain} {_cost(price.act_steps, run)}")
    elif moment is not None:
        price = _of_moment(moment, run, policy, target_step)
    else:
        return None
    wait = price.wait_steps
    wait_gpu_hours = None if wait is None else gpu_hours(wait, run)
    return replace(price, act_gpu_hours=gpu_hours(price.act_steps, run), wait_gpu_hours=wait_gpu_hours)


def priced_verdict(verdict: Verdict, series: Series, run: RunState, policy: Policy) -> Verdict:
    """Under `wait = "priced"`, diverged where the price ends the wait for an open spike; else the judge's verdict."""
    moment = moment_of(series) if policy.wait == "priced" and verdict.kind is VerdictKind.SPIKE else None
    if moment is None or not is_over(moment, price := _of_moment(moment, run, policy, None)):
        return verdict
    reason = f"{verdict.reason}; {price.reason}"
    said = replace(verdict, kind=VerdictKind.DIVERGED, reason=reason, alarm_step=moment.step)
    known = next((e for e in series.events if e.onset_range == moment.onset_range and e.end_step is None), None)
    return said if known is None else replace(said, led_by=known.led_by, led_by_steps=known.led_by_steps)


def _act_steps(onset: int, run: RunState, policy: Policy, target_step: int | None) -> float:
    """What a rollback now throws away, and the restart's time."""
    if target_step is None:
        whole, _ = healthy_until(onset - policy.margin_steps, run)
        target_step = whole[-1].global_step if whole else 0
    return lost_steps(target_step, run) + (policy.restart_s / run.step_time_s if run.step_time_s else 0.0)


def _of_moment(moment: Moment, run: RunState, policy: Policy, target_step: int | None) -> WaitingPrice:
    odds = odds_of(moment)
    price = priced(moment, odds, _act_steps(moment.onset_range[0], run, policy, target_step))
    if odds is None or price.wait_steps is None:
        return replace(price, reason="too few spikes of this size and age are known to price waiting")
    cheaper = "rolling back now is cheaper" if price.rollback_is_cheaper else "waiting is cheaper"
    own = f", {odds.own} of this run's own did come back" if odds.own else ""
    reason = (
        f"{cheaper}: of {odds.pooled} pooled spikes that looked so after {moment.age:.0f} steps {odds.pooled_never} "
        f"never came back{own}; {odds.never:.0%} are expected not to. A rollback now costs "
        f"{_cost(price.act_steps, run)}; waiting until step {price.wait_until_step} costs "
        f"{_cost(price.wait_steps, run)} on average"
    )
    return replace(price, reason=reason)


def _cost(steps: float, run: RunState) -> str:
    hours = gpu_hours(steps, run)
    return f"{steps:.0f} steps" if hours is None else f"{steps:.0f} steps ({hours:.3g} GPU-hours)"
