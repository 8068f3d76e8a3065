"""What is read of a probe: its validations, whether their perplexity fluctuates, and where it stands."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sentinel.judge.history import Attempt
from sentinel.lab.probes.probe import ProbeResult
from sentinel.lab.tune.search import ProbeSeen

SIGNIFICANT = 1.3  # Times the best perplexity before: above it a fluctuation is significant (the paper)


def perplexity(loss: float) -> float:
    """exp of a loss in nats, dimensionless; inf where the loss is not finite, or too large for a number."""
    return math.exp(loss) if math.isfinite(loss) and loss < 700 else math.inf


def perplexity_ratio(loss: float, best_before: float | None) -> float:
    """This validation's perplexity over the best of all previous ones, dimensionless; the losses are in nats.

    The first (nothing before it) is 1.0. inf where the loss is nan or inf: that is the worst ratio, not a missing one.

    Source: Li, Zhang & He 2022, section 4, "significant fluctuation" (arXiv:2108.06084).
    """
    if not math.isfinite(loss):
        return math.inf
    return 1.0 if best_before is None else perplexity(loss - best_before)


@dataclass(frozen=True, slots=True)
class Curve:
    """The validation losses of one run."""

    points: tuple[tuple[int, float], ...] = ()  # (global_step, loss in nats at full length); nan and inf are measured

    def ratios(self) -> tuple[tuple[int, float], ...]:
        """(global_step, perplexity ratio) of each validation. What is not finite never becomes the best."""
        found, best = [], None
        for step, loss in self.points:
            found.append((step, perplexity_ratio(loss, best)))
            if math.isfinite(loss) and (best is None or loss < best):
                best = loss
        return tuple(found)

    def largest_ratio(self) -> float | None:
        """The largest perplexity ratio; None where nothing was validated."""
        return max((ratio for _, ratio in self.ratios()), default=None)

    def fluctuates_at(self, limit: float = SIGNIFICANT) -> int | None:
        """The first step whose ratio is above the limit; None where there is none."""
        return next((step for step, ratio in self.ratios() if ratio > limit), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading(ProbeResult):
    """What one probe has shown, as far as its trainer has reported it. `losses` are its validations."""

    consumed_tokens: int = 0  # Tokens trained on; 0 where the trainer does not count them. Validation's are not in it.
    broke_at: int | None = None  # The first step whose training loss was nan or inf: no perplexity is worse
    seed: int | None = None  # The seed that orders the data, as the trainer reported it; None where it has not
    finished: str | None = None  # Why the trainer has ended, in its own words; None while it has not said so

    @property
    def sentence(self) -> str:
        return self.why

    @property
    def curve(self) -> Curve:
        return Curve(self.losses)

    def seen(self, limit: float, horizon_steps: int) -> ProbeSeen:
        """What it says about the pacing: up to the horizon, and the first validation at or after it."""
        before = sum(step < horizon_steps for step, _ in self.losses)
        told = Curve(self.losses[: before + 1])
        last = told.points[-1][0] if told.points else 0
        broke = self.broke_at if self.broke_at is not None and self.broke_at <= max(last, horizon_steps) else None
        bad = [step for step in (told.fluctuates_at(limit), broke) if step is not None]
        return ProbeSeen(fluctuated_at=min(bad, default=None), calm_through=last, ended=self.finished == "finished")


def reading_of(attempt: Attempt | None, name: str = "") -> ProbeReading:
    """By the attempt's readings so far; a validation that was taken again counts as it was then."""
    attempt = attempt or Attempt(0)
    broke = (s.global_step for s in attempt.samples if not math.isfinite(s.loss) and not s.skipped)
    return ProbeReading(
        name=name,
        ended="verdict",
        outcome="unknown",
        why="",
        steps=max((s.global_step for s in attempt.samples), default=0),
        losses=tuple(sorted({v.global_step: v.loss for v in attempt.validations}.items())),
        consumed_tokens=max((s.consumed_tokens or 0 for s in attempt.samples), default=0),
        broke_at=next(broke, None),
        seed=attempt.started.seed if attempt.started is not None else None,
        finished=attempt.finished.reason if attempt.finished is not None else None,
    )
