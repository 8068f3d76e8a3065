"""Whether a restart has recovered: past the danger, no spike since, not on a plateau, and really better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sentinel.judge.series import Series
from sentinel.vocabulary.sample import Sample

__all__ = ["WINDOW", "Answer", "Danger", "Recovery", "best_mean", "recovery"]

WINDOW = 20
"""Steps of the mean loss that the level before the onset and the level now are compared by."""

BETTER_BY = 0.05
"""A recovered loss is this share below the best before the onset; less could be the next spike's way in."""

IMPROVES_BY = 0.01
"""On a plateau the mean over two WINDOWs is less than this share below that of the two before: three standard errors in
the reference runs, whose 40-step means have a noise of 0.2 to 0.3 %; less can't be told from standing still."""

ON_TREND_WITHIN = 0.005
"""How far above the trend from before the onset (share of the loss) a loss may be and still follow it."""


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
    """Where LR and sequence length of the restart have warmed up."""

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


def best_mean(samples: Sequence[Sample], *, window: int = WINDOW, full_seqlen: int | None = None) -> float | None:
    """Smallest mean loss over `window` neighbouring steps, nats; None when there is no whole window.

    Only finite losses, at full length where that is given: a loss at a shorter length does not compare.
    """
    losses = [s.loss for s in samples if _counts(s, full_seqlen)]
    means = [math.fsum(losses[i : i + window]) / window for i in range(len(losses) - window + 1)]
    return min(means, default=None)


def recovery(
    before: Sequence[Sample],
    since: Sequence[Sample],
    series: Series,
    danger: Danger,
    *,
    full_seqlen: int | None,
    finished: bool,
) -> Recovery:
    """Whether the attempt whose samples since the restart are `since` has recovered.

    `before` are the steps before the onset (for their trend), `series` the judge's own view of the attempt.
    """
    if not since:
        return _not_yet("the restart has not made a step yet", finished)
    last = since[-1]
    past_step = max(danger.onset_step, danger.warmup_end_step)
    if danger.total_steps is not None:
        past_step = min(past_step, danger.total_steps - 2 * WINDOW)
    past = [s for s in since if s.global_step > past_step and _past_tokens(s, danger)]
    if series.episode is not None:
        return _not_yet(f"the loss is outside its band since step {series.episode.onset_range[1]}", finished)
    if len(past) < 2 * WINDOW:
        return _not_yet(f"step {last.global_step}; past onset and warmup at {past_step + 2 * WINDOW}", finished)
    spikes = [onset for onset, _ in series.healed if onset >= past[-2 * WINDOW].global_step]
    if spikes:
        return _not_yet(f"a spike at step {spikes[-1]} is too fresh", finished)
    verdict = _level(before, since, danger, full_seqlen)
    if verdict.answer is Answer.RECOVERED:
        return verdict
    if last.global_step > max(danger.onset_step, danger.warmup_end_step) + danger.hold_steps:
        return Recovery(answer=Answer.FAILED, reason=f"{danger.hold_steps} steps past the danger: {verdict.reason}")
    return _not_yet(verdict.reason, finished)


def _level(before: Sequence[Sample], since: Sequence[Sample], danger: Danger, full_seqlen: int | None) -> Recovery:
    losses = [s.loss for s in since if _counts(s, full_seqlen)]
    if len(losses) < 4 * WINDOW:
        return Recovery(answer=Answer.NOT_YET, reason="too few steps at full length yet")
    now = math.fsum(losses[-2 * WINDOW :]) / (2 * WINDOW)
    previous = math.fsum(losses[-4 * WINDOW : -2 * WINDOW]) / (2 * WINDOW)
    best = best_mean(since, full_seqlen=full_seqlen)
    if danger.best_before is None or best is None:
        return Recovery(answer=Answer.NOT_YET, reason="nothing before the onset to compare with")
    wanted = danger.best_before * (1 - BETTER_BY)
    on_trend = _on_trend(before, now, since[-1].global_step, full_seqlen)
    if best > wanted and not on_trend:
        return Recovery(
            answer=Answer.NOT_YET,
            reason=f"best {WINDOW}-step mean {best:.3f}, wanted {wanted:.3f} (5 % below {danger.best_before:.3f})",
        )
    if now > previous * (1 - IMPROVES_BY) and not on_trend:
        return Recovery(answer=Answer.NOT_YET, reason=f"the loss stands at {now:.3f}: a plateau")
    how = "follows the trend from before the onset" if on_trend and best > wanted else f"is {best:.3f}"
    return Recovery(
        answer=Answer.RECOVERED,
        reason=f"best {WINDOW}-step mean {how}; it was {danger.best_before:.3f} before the onset",
    )


def _on_trend(before: Sequence[Sample], now: float, step: int, full_seqlen: int | None) -> bool:
    """Whether the loss now is where a power law through the last half of the steps before the onset would have it.

    Needs 10 windows to draw a line through; extrapolates no further than the steps there were.
    """
    points = [(s.global_step, s.loss) for s in before if _counts(s, full_seqlen)]
    points = points[len(points) // 2 :]
    if len(points) < 10 * WINDOW or step > 2 * points[-1][0]:
        return False
    xs = [math.log(max(1, at)) for at, _ in points]
    ys = [math.log(loss) if loss > 0 else 0.0 for _, loss in points]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    spread = math.fsum((x - mean_x) ** 2 for x in xs)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    if slope >= 0:
        return False  # it was not improving: there is no trend to follow
    expected = math.exp(mean_y + slope * (math.log(step) - mean_x))
    return now <= expected * (1 + ON_TREND_WITHIN)


def _counts(sample: Sample, full_seqlen: int | None) -> bool:
    at_length = full_seqlen is None or sample.seqlen is None or sample.seqlen >= full_seqlen
    return at_length and not sample.skipped and math.isfinite(sample.loss)


def _past_tokens(sample: Sample, danger: Danger) -> bool:
    if danger.onset_tokens is None or sample.consumed_tokens is None:
        return True
    return sample.consumed_tokens > danger.onset_tokens


def _not_yet(reason: str, finished: bool) -> Recovery:
    if finished:
        return Recovery(answer=Answer.FAILED, reason=f"the run has ended and has not recovered: {reason}")
    return Recovery(answer=Answer.NOT_YET, reason=reason)
