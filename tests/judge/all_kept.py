"""A run's past with every sample kept, and what was asked of it: what a watch that keeps little is held to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from sentinel.judge.recovery_check import (
    BETTER_BY,
    IMPROVES_BY,
    ON_TREND_WITHIN,
    WINDOW,
    Danger,
    Recovery,
    RecoveryOutcome,
)
from sentinel.judge.series import Series
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import Record, RunStarted, Sample, Validation

__all__ = ["AllKept", "best_mean", "recovery"]

_VALIDATIONS = 2


@dataclass
class AllKept:
    """Everything that was told, in the order in which it was."""

    records: list[Record] = field(default_factory=list)

    def lineage(self, attempt: int) -> list[Sample]:
        """The samples of the attempt's lineage."""
        parent, at = self._parent(attempt)
        ancestors = [] if parent is None else [s for s in self.lineage(parent) if s.global_step <= at]
        return ancestors + [r for r in self.records if isinstance(r, Sample) and r.attempt == attempt]

    def validations(self, attempt: int) -> list[Validation]:
        """The validations of the attempt's lineage."""
        parent, at = self._parent(attempt)
        ancestors = [] if parent is None else [v for v in self.validations(parent) if v.global_step <= at]
        return ancestors + [r for r in self.records if isinstance(r, Validation) and r.attempt == attempt]

    def positions(self, attempt: int, steps: Iterable[int]) -> dict[int, Anchor]:
        """Where the data stood at those of the steps that are on the lineage."""
        known = {
            s.global_step: Anchor(
                global_step=s.global_step, consumed_samples=s.consumed_samples, consumed_tokens=s.consumed_tokens
            )
            for s in self.lineage(attempt)
        }
        return {step: known[step] for step in sorted(set(steps)) if step in known}

    def _parent(self, attempt: int) -> tuple[int | None, int]:
        started = [r for r in self.records if isinstance(r, RunStarted) and r.attempt == attempt]
        known = {r.attempt for r in self.records}
        if not started or started[-1].parent_attempt is None or started[-1].resumed_from is None:
            return None, 0
        parent = started[-1].parent_attempt
        return (parent if parent in known and parent < attempt else None), started[-1].resumed_from


def best_mean(samples: Sequence[Sample], *, window: int = WINDOW, full_seqlen: int | None = None) -> float | None:
    """Smallest mean loss over `window` neighbouring steps, nats; None when there is no whole window.

    Only finite losses of all the data and all tokens, at full length where that is given: a loss at a shorter length,
    under random-LTD or of what a curriculum finds easy does not compare.
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
    validated_before: Sequence[Validation] = (),
    validated: Sequence[Validation] = (),
) -> Recovery:
    """Whether the attempt whose samples since the restart are `since` has recovered.

    `before` are the steps before the onset (for their trend), `series` the judge's own view of the attempt. Where the
    training loss does not tell, because a schedule goes on or went on before, the validations do: those before the
    onset and those since the restart.
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
        return _not_yet(f"a spike at step {spikes[-1]} is too recent", finished)
    drop = series.resume_drop
    dropped = drop is not None and drop.lasts
    verdict = None if dropped else _level(before, since, danger, full_seqlen, believed=drop is None)
    if verdict is None:
        late = [v.loss for v in validated if v.global_step > past_step]
        verdict = _validated([v.loss for v in validated_before], late)
    if verdict.answer is RecoveryOutcome.RECOVERED:
        return verdict
    if drop is not None and dropped:
        return _not_yet(f"{drop.sentence}; that is no recovery: {verdict.reason}", finished)
    over = last.global_step > max(danger.onset_step, danger.warmup_end_step) + danger.hold_steps
    stood = _stands([s for s in since if _counts(s, full_seqlen)], danger)
    if stood is not None and (finished or (over and stood[1])):
        return _no_worse(*stood, danger, verdict.reason, finished=finished)
    if over:
        return Recovery(
            answer=RecoveryOutcome.FAILED, reason=f"{danger.hold_steps} steps past the danger: {verdict.reason}"
        )
    return _not_yet(verdict.reason, finished)


def _no_worse(stands: float, falls: bool, danger: Danger, reason: str, *, finished: bool) -> Recovery:
    why = f"the loss stands at {stands:.3f}, no worse than the best before the onset"
    if finished and not falls:
        return Recovery(answer=RecoveryOutcome.HELD, reason=f"the run has ended: {why}; {reason}")
    if finished or stands <= (danger.best_before or 0.0) * (1 - BETTER_BY):
        return Recovery(answer=RecoveryOutcome.RECOVERED, reason=f"{why}, and still falls")
    return Recovery(answer=RecoveryOutcome.NOT_YET, reason=f"{why}, and still falls; {reason}")


def _stands(since: Sequence[Sample], danger: Danger) -> tuple[float, bool] | None:
    """Where the loss stands that was no worse than before for a hold, and whether it falls; None where it was worse."""
    if (before := danger.best_before) is None:
        return None
    whole = len(since) - len(since) % WINDOW
    blocks = [since[at : at + WINDOW] for at in range(0, whole, WINDOW)]
    means = [(part[-1].global_step, math.fsum(s.loss for s in part) / WINDOW) for part in blocks]
    first = next((place for place, (_, mean) in enumerate(means) if mean <= before * 1.005), None)
    if first is None or means[-1][0] - means[first][0] < danger.hold_steps - WINDOW:
        return None
    since_then = [m for step, m in means[first:] if step >= means[-1][0] - danger.hold_steps]
    since_then = since_then[-max(4, danger.hold_steps // WINDOW) :]
    half, stands = len(since_then) // 2, (since_then[-1] + since_then[-2]) / 2
    if half < 2 or stands > before * 1.005:
        return None
    return stands, median(since_then[half:]) <= 0.99 * median(since_then[:half])


def _validated(before: Sequence[float], late: Sequence[float]) -> Recovery:
    """By validation losses, nats: always at full length, of all the data. The last two, one could be luck."""
    best = min((loss for loss in before if math.isfinite(loss)), default=None)
    if best is None:
        return Recovery(answer=RecoveryOutcome.NOT_YET, reason="nothing before the onset to compare with")
    if len(late) < _VALIDATIONS or not all(map(math.isfinite, late[-_VALIDATIONS:])):
        return Recovery(
            answer=RecoveryOutcome.NOT_YET, reason="too few steps at full length yet, and too few validations"
        )
    now, wanted = max(late[-_VALIDATIONS:]), best * (1 - BETTER_BY)
    said = f"the last {_VALIDATIONS} validation losses are {now:.3f} or less"
    if now > wanted:
        return Recovery(answer=RecoveryOutcome.NOT_YET, reason=f"{said}, wanted {wanted:.3f} (5 % below {best:.3f})")
    return Recovery(answer=RecoveryOutcome.RECOVERED, reason=f"{said}; the best before the onset was {best:.3f}")


def _level(
    before: Sequence[Sample], since: Sequence[Sample], danger: Danger, full_seqlen: int | None, *, believed: bool
) -> Recovery | None:
    """By the training loss; None where too few steps compare."""
    losses = [s.loss for s in since if _counts(s, full_seqlen)]
    if len(losses) < 4 * WINDOW:
        return None
    now = math.fsum(losses[-2 * WINDOW :]) / (2 * WINDOW)
    previous = math.fsum(losses[-4 * WINDOW : -2 * WINDOW]) / (2 * WINDOW)
    best = best_mean(since, full_seqlen=full_seqlen)
    if danger.best_before is None or best is None:
        return None
    best = best if believed else now
    wanted = danger.best_before * (1 - BETTER_BY)
    on_trend = _on_trend(before, now, since[-1].global_step, full_seqlen)
    if best > wanted and not on_trend:
        return Recovery(
            answer=RecoveryOutcome.NOT_YET,
            reason=f"best {WINDOW}-step mean {best:.3f}, wanted {wanted:.3f} (5 % below {danger.best_before:.3f})",
        )
    if now > previous * (1 - IMPROVES_BY) and not on_trend:
        return Recovery(answer=RecoveryOutcome.NOT_YET, reason=f"the loss stands at {now:.3f}: a plateau")
    how = "follows the trend from before the onset" if on_trend and best > wanted else f"is {best:.3f}"
    return Recovery(
        answer=RecoveryOutcome.RECOVERED,
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
    whole = sample.kept_tokens is None or (sample.seqlen is not None and sample.kept_tokens >= sample.seqlen)
    of_all = sample.curriculum_share is None or sample.curriculum_share >= 1
    return at_length and whole and of_all and not sample.skipped and math.isfinite(sample.loss)


def _past_tokens(sample: Sample, danger: Danger) -> bool:
    if danger.onset_tokens is None or sample.consumed_tokens is None:
        return True
    return sample.consumed_tokens > danger.onset_tokens


def _not_yet(reason: str, finished: bool) -> Recovery:
    if finished:
        return Recovery(answer=RecoveryOutcome.FAILED, reason=f"the run has ended and has not recovered: {reason}")
    return Recovery(answer=RecoveryOutcome.NOT_YET, reason=reason)
