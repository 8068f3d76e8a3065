"""What is read of a probe: its validations, whether their perplexity fluctuates, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sentinel.tune.search import Seen
from sentinel.vocabulary.numbers import to_number
from sentinel.vocabulary.sample import Record, RunFinished, RunStarted, Sample, Validation

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

    def with_points(self, more: Iterable[tuple[int, float]]) -> Curve:
        """The curve with later points. A step that is there already was taken again, and counts as it was then."""
        return Curve(tuple(sorted((dict(self.points) | dict(more)).items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One life of a probe, as far as its trainer has reported it."""

    curve: Curve = field(default_factory=Curve)
    global_step: int = 0  # Optimizer steps taken
    consumed_tokens: int = 0  # Tokens trained on; 0 where the trainer does not count them. Validation's are not in it.
    broke_at: int | None = None  # The first step whose training loss was nan or inf: no perplexity is worse
    started: RunStarted | None = None  # What the trainer said that it runs with; None: it has not, or only logs
    seed: int | None = None  # The seed that orders the data, as the trainer reported it; None where it has not
    finished: str | None = None  # Why the trainer has ended, in its own words; None while it has not said so

    def after(self, records: Iterable[Record]) -> Reading:
        """The reading with what was reported since."""
        new, validations = self, []
        for record in records:
            match record:
                case RunStarted():
                    new = replace(new, started=record, seed=record.seed)
                case Validation():
                    validations.append((record.global_step, record.loss))
                case Sample():
                    new = new._with_sample(record)
                case RunFinished():
                    new = replace(new, finished=record.reason)
        return replace(new, curve=new.curve.with_points(validations))

    def _with_sample(self, sample: Sample) -> Reading:
        broke = self.broke_at
        if broke is None and not math.isfinite(sample.loss) and not sample.skipped:
            broke = sample.global_step
        return replace(
            self,
            global_step=max(self.global_step, sample.global_step),
            consumed_tokens=max(self.consumed_tokens, sample.consumed_tokens or 0),
            broke_at=broke,
        )

    def seen(self, limit: float, horizon_steps: int) -> Seen:
        """What it says about the pacing: up to the horizon, and the first validation at or after it."""
        before = sum(step < horizon_steps for step, _ in self.curve.points)
        told = Curve(self.curve.points[: before + 1])
        last = told.points[-1][0] if told.points else 0
        broke = self.broke_at if self.broke_at is not None and self.broke_at <= max(last, horizon_steps) else None
        bad = [step for step in (told.fluctuates_at(limit), broke) if step is not None]
        return Seen(fluctuated_at=min(bad, default=None), calm_through=last, ended=self.finished == "finished")

    def to_json(self) -> dict[str, Any]:
        """As the record of the search keeps it."""
        return {name: getattr(self, name) for name in _KEPT} | {"validations": [list(p) for p in self.curve.points]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """What to_json gave, but what the trainer said at its start."""
        points = tuple((int(step), cast("float", to_number(loss, "loss"))) for step, loss in data["validations"])
        return cls(curve=Curve(points), **{name: data[name] for name in _KEPT})


_KEPT = ("global_step", "consumed_tokens", "broke_at", "seed", "finished")
