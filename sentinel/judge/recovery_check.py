"""Whether a restart has recovered: past the danger, no spike since, not on a plateau, and really better.

Past onset and warmup, without an open episode or a fresh spike, at full length, over all tokens and all data: the best
20-step mean is at least 5 % below the best before the onset, and the mean of the last 40 steps is below that best, and
1 % below the mean of the 40 before. Following the old trend within 0.5 % also counts. With fewer than 80 such steps,
the last two validations past onset and warmups must each be 5 % below the best before the onset. While a drop that came
with the resume lasts (data seen before), only these validations count: the answer stays open, however long it takes.
Once it is over, the present level counts in place of the best mean.

When its hold is over, it has failed, unless it is on its way: since it was no worse than the best before the onset it
has made as many steps as the hold has, it stands there, and over these steps it has fallen by 1 %, the second half
against the first. Then 5 % below is enough; until it is there it is held on, and where the run ends by itself it has
recovered. Where the run ends without that fall, it has held: no worse than before, and no better.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from sentinel.judge.noise_band import PowerLaw
from sentinel.judge.series import Series
from sentinel.vocabulary.sample import Sample, Validation

WINDOW = 20  # Steps of the mean loss that the level before the onset and the level now are compared by
BETTER_BY = 0.05  # A recovered loss is this share below the best before the onset; less could be the next spike
# On a plateau the mean over two WINDOWs is less than this share below that of the two before: three standard errors in
# the reference runs, whose 40-step means have a noise of 0.2 to 0.3 %; less is no progress.
IMPROVES_BY = 0.01
ON_TREND_WITHIN = 0.005  # How far above the trend from before the onset (share) a loss may be and still follow it
_VALIDATIONS = 2  # Validations past onset and warmup that must each be better


class RecoveryOutcome(StrEnum):
    NOT_YET = "not_yet"
    RECOVERED = "recovered"
    HELD = "held"  # The run has ended: it did not diverge again, and was no better than before
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    onset_step: int  # Late end of the onset
    onset_tokens: int | None  # consumed_tokens there; None where tokens are not reported
    warmup_end_step: int  # Where the restart's LR, sequence length, random-LTD and curriculum have come to their ends
    best_before: float | None  # Best WINDOW-step mean loss before the onset, nats; None when there were too few steps
    hold_steps: int  # Steps past onset and warmup by which it has to have recovered
    total_steps: int | None = None  # Where the run ends by itself: a warmup that would last longer counts as over there


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    answer: RecoveryOutcome
    reason: str


class BestMean:
    """The smallest mean over `window` neighbouring losses that compare so far, nats; keeps one window."""

    def __init__(self, window: int, full_seqlen: int | None) -> None:
        self._full_seqlen = full_seqlen
        self._losses: deque[float] = deque(maxlen=window)
        self.value: float | None = None  # None before there is a whole window

    def push(self, sample: Sample) -> None:
        if not comparable(sample, self._full_seqlen):
            return
        self._losses.append(sample.loss)
        if len(self._losses) == self._losses.maxlen:
            mean = math.fsum(self._losses) / len(self._losses)
            self.value = mean if self.value is None else min(mean, self.value)


@dataclass(frozen=True, slots=True)
class OldTrend:
    """A falling power law through the last half of the steps before the onset."""

    last_step: int
    law: PowerLaw

    @classmethod
    def of(cls, before: Iterable[Sample], full_seqlen: int | None) -> OldTrend | None:
        """None where there are less than 10 windows to draw a line through, or the loss was not falling."""
        steps, losses = array("q"), array("d")
        for sample in before:
            if comparable(sample, full_seqlen):
                steps.append(sample.global_step)
                losses.append(sample.loss)
        half = len(steps) // 2
        if len(steps) - half < 10 * WINDOW:
            return None
        law = PowerLaw.through(steps[half:], losses[half:])
        return cls(steps[-1], law) if law.slope < 0 else None

    def loss(self, step: int) -> float | None:
        """Where the loss would be, nats; None where the step is farther than there were steps again."""
        return self.law.loss(step) if step <= 2 * self.last_step else None


def comparable(sample: Sample, full_seqlen: int | None) -> bool:
    """Whether its loss is a number, of all the data and all tokens, at full length where that is given."""
    at_length = full_seqlen is None or sample.seqlen is None or sample.seqlen >= full_seqlen
    whole = sample.kept_tokens is None or (sample.seqlen is not None and sample.kept_tokens >= sample.seqlen)
    of_all = sample.curriculum_share is None or sample.curriculum_share >= 1
    return at_length and whole and of_all and not sample.skipped and math.isfinite(sample.loss)


class Restart:
    """What `recovery_of` needs of the samples since a restart, taken one by one; does not grow with them."""

    def __init__(self, danger: Danger, full_seqlen: int | None) -> None:
        self.danger = danger
        # The last step that is not past the danger; consumed_tokens have to be past it too.
        self.past_step = max(danger.onset_step, danger.warmup_end_step)
        if danger.total_steps is not None:
            self.past_step = min(self.past_step, danger.total_steps - 2 * WINDOW)
        self.past: deque[int] = deque(maxlen=2 * WINDOW)  # The last steps past the danger
        self.losses: deque[float] = deque(maxlen=4 * WINDOW)  # The last losses that compare, nats
        self.last_step: int | None = None
        self._best = BestMean(WINDOW, full_seqlen)
        self._full_seqlen = full_seqlen
        self._block: list[float] = []  # losses that compare since the last of the means
        self._means: deque[tuple[int, float]] = deque(maxlen=max(4, danger.hold_steps // WINDOW))
        """Last step, and mean of WINDOW losses, nats: from when it was no worse than before the onset, a hold long."""
        self._no_worse_from: int | None = None  # the last step of the first of them

    @property
    def best(self) -> float | None:
        return self._best.value

    def push(self, sample: Sample) -> None:
        self.last_step = sample.global_step
        tokens, onset_tokens = sample.consumed_tokens, self.danger.onset_tokens
        if sample.global_step > self.past_step and (tokens is None or onset_tokens is None or tokens > onset_tokens):
            self.past.append(sample.global_step)
        if comparable(sample, self._full_seqlen):
            self.losses.append(sample.loss)
            self._best.push(sample)
            self._block.append(sample.loss)
            if len(self._block) == WINDOW:
                self._of_block(sample.global_step, math.fsum(self._block) / WINDOW)
                self._block.clear()

    def _of_block(self, step: int, mean: float) -> None:
        before = self.danger.best_before
        if self._no_worse_from is None and (before is None or mean > before * (1 + ON_TREND_WITHIN)):
            return
        self._no_worse_from = step if self._no_worse_from is None else self._no_worse_from
        self._means.append((step, mean))
        while self._means[0][0] < step - self.danger.hold_steps:
            self._means.popleft()

    @property
    def stands(self) -> float | None:
        """Mean of the last 2 x WINDOW losses of whole blocks, nats; None where it is above the best before the onset,
        or has come down to it less than `hold_steps` ago."""
        before, begun = self.danger.best_before, self._no_worse_from
        if before is None or begun is None or len(self._means) < 4:
            return None
        if self._means[-1][0] - begun < self.danger.hold_steps - WINDOW:
            return None
        now = (self._means[-1][1] + self._means[-2][1]) / 2
        return now if now <= before * (1 + ON_TREND_WITHIN) else None

    @property
    def falls(self) -> bool:
        """Whether the loss falls over the last `hold_steps`; only where it `stands`."""
        means = [mean for _, mean in self._means]
        half = len(means) // 2
        return median(means[half:]) <= median(means[:half]) * (1 - IMPROVES_BY)  # a spike that healed is no fall


def recovery_of(
    old: OldTrend | None,
    restart: Restart,
    series: Series,
    *,
    finished: bool,
    validated_before: Sequence[Validation] = (),
    validated: Sequence[Validation] = (),
) -> Recovery:
    """Whether the restart has recovered. `old` is the trend of the steps before the onset, `series` the judge's own
    view of the new attempt. Where the training loss does not show it, because a schedule goes on or went on before, the
    validations do: those before the onset and those since the restart."""
    danger, past_step, last_step, drop = restart.danger, restart.past_step, restart.last_step, series.resume_drop
    found = _waiting(restart, series)
    if found is None:
        dropped = drop is not None and drop.lasts
        found = None if dropped else _level(old, restart, believed=drop is None)
        if found is None:
            late = [v.loss for v in validated if v.global_step > past_step]
            found = _validated([v.loss for v in validated_before], late)
        if found.answer is RecoveryOutcome.RECOVERED:
            return found
        over = last_step is not None and last_step > max(danger.onset_step, danger.warmup_end_step) + danger.hold_steps
        if drop is not None and dropped:  # unknown, and not failed, however long it lasts
            found = _not_yet(f"{drop.sentence}; that is no recovery: {found.reason}")
        elif (over or finished) and (stands := restart.stands) is not None and (finished or restart.falls):
            why = f"the loss stands at {stands:.3f}, no worse than the best before the onset"
            if finished and not restart.falls:
                return Recovery(answer=RecoveryOutcome.HELD, reason=f"the run has ended: {why}; {found.reason}")
            if finished or stands <= (danger.best_before or 0.0) * (1 - BETTER_BY):
                return _recovered(f"{why}, and still falls")
            return _not_yet(f"{why}, and still falls; {found.reason}")
        elif over:
            return _failed(f"{danger.hold_steps} steps past the danger: {found.reason}")
    return _failed(f"the run has ended and has not recovered: {found.reason}") if finished else found


def _recovered(reason: str) -> Recovery:
    return Recovery(answer=RecoveryOutcome.RECOVERED, reason=reason)


def _failed(reason: str) -> Recovery:
    return Recovery(answer=RecoveryOutcome.FAILED, reason=reason)


def _not_yet(reason: str) -> Recovery:
    return Recovery(answer=RecoveryOutcome.NOT_YET, reason=reason)


def _waiting(restart: Restart, series: Series) -> Recovery | None:
    if restart.last_step is None:
        return _not_yet("the restart has not made a step yet")
    if series.episode is not None:
        return _not_yet(f"the loss is outside its band since step {series.episode.onset_range[1]}")
    if len(restart.past) < 2 * WINDOW:
        return _not_yet(f"step {restart.last_step}; past onset and warmup at {restart.past_step + 2 * WINDOW}")
    spikes = [onset for onset, _ in series.healed if onset >= restart.past[0]]
    return _not_yet(f"a spike at step {spikes[-1]} is too recent") if spikes else None


def _validated(before: Sequence[float], late: Sequence[float]) -> Recovery:
    """By validation losses, nats: always at full length, of all the data. The last two, one could be luck."""
    best = min((loss for loss in before if math.isfinite(loss)), default=None)
    if best is None:
        return _not_yet("nothing before the onset to compare with")
    if len(late) < _VALIDATIONS or not all(map(math.isfinite, late[-_VALIDATIONS:])):
        return _not_yet("too few steps at full length yet, and too few validations")
    now, wanted = max(late[-_VALIDATIONS:]), best * (1 - BETTER_BY)
    stands = f"the last {_VALIDATIONS} validation losses are {now:.3f} or less"
    if now > wanted:
        return _not_yet(f"{stands}, wanted {wanted:.3f} (5 % below {best:.3f})")
    return _recovered(f"{stands}; the best before the onset was {best:.3f}")


def _level(old: OldTrend | None, restart: Restart, *, believed: bool) -> Recovery | None:
    """By the training loss; None where too few steps compare. Its best is not `believed` where it had dropped for a
    while with the resume: then its present level counts."""
    before, best, losses = restart.danger.best_before, restart.best, list(restart.losses)
    if len(losses) < 4 * WINDOW or before is None or best is None:
        return None
    now = math.fsum(losses[-2 * WINDOW :]) / (2 * WINDOW)
    previous = math.fsum(losses[-4 * WINDOW : -2 * WINDOW]) / (2 * WINDOW)
    wanted = before * (1 - BETTER_BY)
    best = best if believed else now
    expected = None if old is None or restart.last_step is None else old.loss(restart.last_step)
    on_trend = expected is not None and now <= expected * (1 + ON_TREND_WITHIN)
    if best > wanted and not on_trend:
        return _not_yet(f"best {WINDOW}-step mean {best:.3f}, wanted {wanted:.3f} (5 % below {before:.3f})")
    if now > before and not on_trend:  # it was there, and has left it again
        return _not_yet(f"the loss stands at {now:.3f}, above {before:.3f}, the best before the onset")
    if now > previous * (1 - IMPROVES_BY) and not on_trend:
        return _not_yet(f"the loss stands at {now:.3f}: a plateau")
    how = "follows the trend from before the onset" if on_trend and best > wanted else f"is {best:.3f}"
    return _recovered(f"best {WINDOW}-step mean {how}; it was {before:.3f} before the onset")
