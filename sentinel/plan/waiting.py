"""Waiting for a spike to come back, or rolling back now: which of the two costs less on average. Pure.

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
from dataclasses import dataclass
from itertools import accumulate

from sentinel.judge.series import Series
from sentinel.plan.pooled_spikes import AGES, POOLED, SIZES, Table

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
class Waiting:
    """The two prices, in steps; None where the odds are unknown: that never acts."""

    act_steps: float  # what a rollback now throws away, the restart's time included
    wait_steps: float | None  # what waiting costs on average, rolled back at the best later step if it has not healed
    wait_until: int | None  # that step
    odds: Odds | None

    @property
    def rollback_is_cheaper(self) -> bool:
        return self.wait_steps is not None and self.act_steps <= self.wait_steps


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


def priced(moment: Moment, odds: Odds | None, act: float) -> Waiting:
    """`act`: what a rollback now costs, in steps: those since the target, and the restart's time."""
    if odds is None or not odds.unhealed:
        return Waiting(act_steps=act, wait_steps=None, wait_until=None, odds=odds)
    wait, older = min((unhealed * (act + older * moment.pace), older) for older, unhealed in odds.unhealed)
    return Waiting(act_steps=act, wait_steps=wait, wait_until=moment.step + round(older * moment.pace), odds=odds)


def is_over(moment: Moment, waiting: Waiting) -> bool:
    """Whether `wait = "priced"` ends the wait before the judge's patience does: by the price, and on the evidence that
    the judge asks for after a quarter of that patience."""
    return moment.stands and waiting.rollback_is_cheaper
