"""What a group of runs came to: when each diverged, and what a rung did against the baseline of the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.batched.intervals import sign_test
from benchmarks.batched.training import Recorded

__all__ = ["LASTING", "OVER", "Group", "first_lasting", "save", "verdict"]

OVER = 1.2
"""A validation loss above 1.2 x its smallest so far counts, as a training loss does in Table 1 of Li, Zhang & He."""

LASTING = 3
"""A loss that stays above for so many validations, 20 steps and more, has diverged; a spike comes back."""

Floats = NDArray[np.float64]


def first_lasting(values: Sequence[float], smallest: float = math.inf) -> int | None:
    """The place from which values stay above OVER x their smallest so far for LASTING of them, or to the end where it
    is nearer and they are not numbers. `smallest`: before the first of them."""
    since = None
    for place, value in enumerate(values):
        if math.isfinite(value) and value <= OVER * smallest:
            smallest, since = min(smallest, value), None
            continue
        since = place if since is None else since
        if place - since + 1 >= LASTING:
            return since
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All seeds of one rung, read from its file."""

    name: str
    seeds: tuple[int, ...]
    onsets: tuple[float, ...]
    """Step of the first lasting rise of each seed; inf where it did not diverge."""

    lr_at_onset: float
    """Median over the seeds that diverged; nan where none did."""

    best: tuple[float, ...]
    final: tuple[float, ...]
    """Validation loss at full length, nats."""

    largest_lr: float
    steps_at_peak: int
    steps: int
    attention_logit: float
    """Median over the seeds of the largest at the end."""

    @classmethod
    def read(cls, path: Path) -> Group:
        with np.load(path, allow_pickle=False) as saved:
            losses, at, prior = saved["validation_loss"], saved["validated"], saved["prior"]
            places = [first_lasting(losses[:, run].tolist(), float(prior[run])) for run in range(losses.shape[1])]
            lr, first = saved["lr"][:, 0], int(saved["steps"][0])
            there = [float(lr[at[place] - first]) for place in places if place is not None]
            return cls(
                name=str(saved["name"]),
                seeds=tuple(saved["seeds"].tolist()),
                onsets=tuple(math.inf if place is None else float(at[place]) for place in places),
                lr_at_onset=float(np.median(there)) if there else math.nan,
                best=tuple(np.fmin(np.nanmin(losses, axis=0), prior).tolist()),
                final=tuple(losses[-1].tolist()),
                largest_lr=float(lr.max()),
                steps_at_peak=int((lr >= saved["peak"] * 0.9999).sum()),
                steps=int(saved["steps"][-1]),
                attention_logit=float(np.median(saved["attention_logit"][-1])),
            )

    def failed(self, healthy: float) -> tuple[bool, ...]:
        """By seed: whether it diverged, or ends above OVER x `healthy`: a run that never learns does not diverge."""
        return tuple(not math.isinf(onset) for onset in self.failed_from(healthy))

    def failed_from(self, healthy: float) -> tuple[float, ...]:
        """By seed: the step from which it fails. inf where it does not; the last one where it fails at the end without
        having done so for LASTING validations; nan where it was never healthy."""

        def of(onset: float, best: float, final: float) -> float:
            if math.isfinite(onset) or final <= OVER * healthy:
                return onset
            return float(self.steps) if best <= OVER * healthy else math.nan

        return tuple(map(of, self.onsets, self.best, self.final))


def save(path: Path, name: str, seeds: Sequence[int], peak: float, prior: Floats, made: Recorded) -> None:
    """The curves of one rung. `prior`: each run's smallest validation loss before its checkpoint."""
    columns = {signal: made.of(signal) for signal in made.rows}
    np.savez_compressed(
        path,
        name=np.array(name),
        seeds=np.array(seeds),
        peak=np.array(peak),
        prior=prior,
        steps=np.array(made.steps),
        tokens=np.array(made.tokens),
        validated=np.array(made.validated),
        **columns,  # type: ignore[arg-type]
    )


def verdict(rung: Group, baseline: Group, healthy: float) -> tuple[str, float, float]:
    """What the rung did, the p of fewer seeds that fail (McNemar) and of a later failure (sign test), paired by seed,
    two-sided; a pair with a run that was never well has no later. What it did has p < 0.05.

    Fewer fail *within these steps*: only a run that is held for longer shows whether the rung cures or postpones.
    """
    theirs = dict(zip(baseline.seeds, baseline.failed_from(healthy), strict=True))
    pairs = [(mine, theirs[seed]) for seed, mine in zip(rung.seeds, rung.failed_from(healthy), strict=True)]
    healed = sum(math.isinf(mine) and not math.isinf(other) for mine, other in pairs)
    harmed = sum(math.isinf(other) and not math.isinf(mine) for mine, other in pairs)
    later, sooner = sum(mine > other for mine, other in pairs), sum(mine < other for mine, other in pairs)
    p_fewer, p_later = sign_test(healed, harmed), sign_test(later, sooner)
    if p_fewer < 0.05:
        lower = "" if rung.largest_lr >= 0.9999 * baseline.largest_lr else ", at a lower LR"
        return ("fewer fail" if healed > harmed else "more fail") + lower, p_fewer, p_later
    if p_later < 0.05:
        return ("postpones" if later > sooner else "hastens"), p_fewer, p_later
    return "nothing shown", p_fewer, p_later
