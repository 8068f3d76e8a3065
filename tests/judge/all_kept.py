"""A run's past with every sample kept, and what was asked of it: what a watch that keeps little is held to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sentinel.judge.recovery_check import WINDOW
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import Record, RunStarted, Sample, Validation

__all__ = ["AllKept", "best_mean"]


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


def _counts(sample: Sample, full_seqlen: int | None) -> bool:
    at_length = full_seqlen is None or sample.seqlen is None or sample.seqlen >= full_seqlen
    whole = sample.kept_tokens is None or (sample.seqlen is not None and sample.kept_tokens >= sample.seqlen)
    of_all = sample.curriculum_share is None or sample.curriculum_share >= 1
    return at_length and whole and of_all and not sample.skipped and math.isfinite(sample.loss)
