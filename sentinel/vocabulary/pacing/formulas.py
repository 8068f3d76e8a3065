"""What the schedules have in common: the root in steps, the list of stages, the multiple."""

from __future__ import annotations

import math
from collections.abc import Sequence


def root(elapsed: int, total: int, *, start: int, full: int, degree: float = 1.0) -> int:
    """s + (e - s) * min((t / T)^(1/r), 1), rounded down; s before the beginning, e where T is 0.

    In this order of operations, which is DeepSpeed's, so that both round to the same whole number at every step.

    Source: `CurriculumScheduler.__fixed_root_get_difficulty` of DeepSpeed 0.19.8. Li, Zhang & He 2022
    (arXiv:2108.06084, section 4) and Li et al. 2022 (arXiv:2212.03597, section 4.1) print (t / T)^r and (t / T)^2 where
    they speak of a root.
    """
    if not total:
        return full
    share: float = min(max(elapsed, 0) / total, 1.0) ** (1.0 / degree)
    return math.floor(share * (full - start) + start)


def rounded(value: int, multiple: int, *, least: int) -> int:
    """The largest multiple up to the value, but never less than `least`."""
    return max(least, value // multiple * multiple)


def staged(elapsed: int, stages: Sequence[int], max_steps: Sequence[int]) -> int:
    """The first stage whose last step is not over yet; the last one has no end.

    Source: `CurriculumScheduler.__fixed_discrete_get_difficulty` of DeepSpeed 0.19.8.
    """
    return next((stage for stage, last in zip(stages, max_steps, strict=False) if elapsed <= last), stages[-1])
