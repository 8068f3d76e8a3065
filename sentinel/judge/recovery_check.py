"""Whether a restart has recovered: past the danger, no spike since, not on a plateau, and really better."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sentinel.judge.before import WINDOW, BestMean, OldTrend, comparable
from sentinel.judge.series import Series
from sentinel.vocabulary.sample import Sample, Validation

__all__ = ["WINDOW", "Answer", "Danger", "Recovery", "Restart", "best_mean", "recovery", "recovery_of"]

BETTER_BY = 0.05
"""A recovered loss is this share below the best before the onset; less could be the next spike's way in."""

IMPROVES_BY = 0.01
"""On a plateau the mean over two WINDOWs is less than this share below that of the two before: three standard errors in
the reference runs, whose 40-step means have a noise of 0.2 to 0.3 %; less can't be told from standing still."""

ON_TREND_WITHIN = 0.005
"""How far above the trend from before the onset (share of the loss) a loss may be and still follow it."""


_VALIDATIONS = 2
"""Validations past onset and warmup that must each be better."""


class Answer(StrEnum):
    """Where a restart stands."""

    NOT_YET = "not_yet"
    RECOVERED = "recovered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    """What the restart has to get past."""

    onset_step: int
    """Late end of the onset."""

    onset_tokens: int | None
    """consumed_tokens there; None where tokens are not reported."""

    warmup_end_step: int
    """Where the restart's LR, sequence length, random-LTD and curriculum have come to their ends."""

    best_before: float | None
    """Best WINDOW-step mean loss before the onset, nats; None when there were too few steps."""

    hold_steps: int
    """Steps past onset and warmup by which it has to have recovered."""

    total_steps: int | None = None
    """Where the run ends by itself: a warmup that would last longer counts as over there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The answer, with its reason."""

    answer: Answer
    reason: str


def best_mean(samples: Iterable[Sample], *, window: int = WINDOW, full_seqlen: int | None = None) -> float | None:
    """Smallest mean loss over `window` neighbouring steps, nats; None when there is no whole window.

    Only finite losses of all the data and all tokens, at full length where that is given: a loss at a shorter length,
    under random-LTD or of what a curriculum finds easy does not compare.
    """
    best = BestMean(window, full_seqlen)
    for sample in samples:
        best.push(sample)
    return best.value


def recovery(
    before: Iterable[Sample],
    since: Iterable[Sample],
    series: Series,
    danger: Danger,
    *,
    full_seqlen: int | None,
    finished: bool,
    validated_before: Sequence[Validation] = (),
    validated: Sequence[Validation] = (),
) -> Recovery:
    """Whether the attempt whose samples since the restart are `since` has recovered.

    `before` are the steps before the onset (for their trend), `series` the judge's own view of the attempt. Where the
    training loss does not tell, because a schedule goes on or went on before, the validations do: those before the
    onset and those since the restart.
    """
    restart = Restart(danger, full_seqlen)
    for sample in since:
        restart.push(sample)
    old = OldTrend.of(before, full_seqlen)
    return recovery_of(old, restart, series, finished=finished, validated_before=validated_before, validated=validated)


class Restart:
    """What `recovery` needs of the samples since a restart, taken one by one; does not grow with them."""

    def __init__(self, danger: Danger, full_seqlen: int | None) -> None:
        self.danger = danger
        self.past_step = max(danger.onset_step, danger.warmup_end_step)
        """The last step that is not past the danger; consumed_tokens have to be past it too."""
        if danger.total_steps is not None:
            self.past_step = min(self.past_step, danger.total_steps - 2 * WINDOW)
        self.past: deque[int] = deque(maxlen=2 * WINDOW)
        """The last steps past the danger."""
        self.losses: deque[float] = deque(maxlen=4 * WINDOW)
        """The last losses that compare, nats."""
        self.last_step: int | None = None
        self._best = BestMean(WINDOW, full_seqlen)
        self._full_seqlen = full_seqlen

    @property
    def best(self) -> float | None:
        """See `best_mean`."""
        return self._best.value

    def push(self, sample: Sample) -> None:
        """Takes the next sample since the restart."""
        self.last_step = sample.global_step
        if sample.global_step > self.past_step and _past_tokens(sample, self.danger):
            self.past.append(sample.global_step)
        if comparable(sample, self._full_seqlen):
            self.losses.append(sample.loss)
            self._best.push(sample)


def recovery_of(
    old: OldTrend | None,
    restart: Restart,
    series: Series,
    *,
    finished: bool,
    validated_before: Sequence[Validation] = (),
    validated: Sequence[Validation] = (),
) -> Recovery:
    """The same, of what was kept of the steps before the onset and of those since the restart."""
    danger, past_step, last_step = restart.danger, restart.past_step, restart.last_step
    if last_step is None:
        return _not_yet("the restart has not made a step yet", finished)
    if series.episode is not None:
        return _not_yet(f"the loss is outside its band since step {series.episode.onset_range[1]}", finished)
    if len(restart.past) < 2 * WINDOW:
        return _not_yet(f"step {last_step}; past onset and warmup at {past_step + 2 * WINDOW}", finished)
    spikes = [onset for onset, _ in series.healed if onset >= restart.past[0]]
    if spikes:
        return _not_yet(f"a spike at step {spikes[-1]} is too fresh", finished)
    verdict = _level(old, restart, last_step)
    if verdict is None:
        late = [v.loss for v in validated if v.global_step > past_step]
        verdict = _validated([v.loss for v in validated_before], late)
    if verdict.answer is Answer.RECOVERED:
        return verdict
    if last_step > max(danger.onset_step, danger.warmup_end_step) + danger.hold_steps:
        return Recovery(answer=Answer.FAILED, reason=f"{danger.hold_steps} steps past the danger: {verdict.reason}")
    return _not_yet(verdict.reason, finished)


def _validated(before: Sequence[float], late: Sequence[float]) -> Recovery:
    """By validation losses, nats: always at full length, of all the data. The last two, one could be luck."""
    best = min((loss for loss in before if math.isfinite(loss)), default=None)
    if best is None:
        return Recovery(answer=Answer.NOT_YET, reason="nothing before the onset to compare with")
    if len(late) < _VALIDATIONS or not all(map(math.isfinite, late[-_VALIDATIONS:])):
        return Recovery(answer=Answer.NOT_YET, reason="too few steps at full length yet, and too few validations")
    now, wanted = max(late[-_VALIDATIONS:]), best * (1 - BETTER_BY)
    said = f"the last {_VALIDATIONS} validation losses are {now:.3f} or less"
    if now > wanted:
        return Recovery(answer=Answer.NOT_YET, reason=f"{said}, wanted {wanted:.3f} (5 % below {best:.3f})")
    return Recovery(answer=Answer.RECOVERED, reason=f"{said}; the best before the onset was {best:.3f}")


def _level(old: OldTrend | None, restart: Restart, last_step: int) -> Recovery | None:
    """By the training loss; None where too few steps compare."""
    danger, losses = restart.danger, list(restart.losses)
    if len(losses) < 4 * WINDOW:
        return None
    now = math.fsum(losses[-2 * WINDOW :]) / (2 * WINDOW)
    previous = math.fsum(losses[-4 * WINDOW : -2 * WINDOW]) / (2 * WINDOW)
    best = restart.best
    if danger.best_before is None or best is None:
        return None
    wanted = danger.best_before * (1 - BETTER_BY)
    on_trend = old is not None and old.reaches(last_step) and now <= old.at(last_step) * (1 + ON_TREND_WITHIN)
    if best > wanted and not on_trend:
        return Recovery(
            answer=Answer.NOT_YET,
            reason=f"best {WINDOW}-step mean {best:.3f}, wanted {wanted:.3f} (5 % below {danger.best_before:.3f})",
        )
    if now > danger.best_before and not on_trend:  # it was there, and has left it again
        above = f"above {danger.best_before:.3f}, the best before the onset"
        return Recovery(answer=Answer.NOT_YET, reason=f"the loss stands at {now:.3f}, {above}")
    if now > previous * (1 - IMPROVES_BY) and not on_trend:
        return Recovery(answer=Answer.NOT_YET, reason=f"the loss stands at {now:.3f}: a plateau")
    how = "follows the trend from before the onset" if on_trend and best > wanted else f"is {best:.3f}"
    return Recovery(
        answer=Answer.RECOVERED,
        reason=f"best {WINDOW}-step mean {how}; it was {danger.best_before:.3f} before the onset",
    )


def _past_tokens(sample: Sample, danger: Danger) -> bool:
    if danger.onset_tokens is None or sample.consumed_tokens is None:
        return True
    return sample.consumed_tokens > danger.onset_tokens


def _not_yet(reason: str, finished: bool) -> Recovery:
    if finished:
        return Recovery(answer=Answer.FAILED, reason=f"the run has ended and has not recovered: {reason}")
    return Recovery(answer=Answer.NOT_YET, reason=reason)
