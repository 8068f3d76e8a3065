"""What the run's own record shows of a divergence beside the probes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from sentinel.judge.noise_band import median
from sentinel.lab.bisect.causes import LR_ROSE, SUSPECTED_BEFORE, RecordEvidence
from sentinel.lab.probes.probe import Window
from sentinel.plan.incident.baseline import Baseline, lr_warmup_steps
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import Sample

_SOME, _OUT_OF_PROPORTION = 3, 100.0  # readings of a norm that tell what is usual, and times that which is not
_NEAR = 20  # Steps before the onset in which a jump of the LR is looked for, or more: all since the checkpoint


def sound_until(line: Iterable[Sample], onset_step: int) -> int | None:
    """The last step before the norm of the weights, or of their updates, left all proportion; None where it did not. A
    checkpoint that was saved later holds what is wrong, long before the loss may show it."""
    seen: dict[str, list[float]] = {"param_norm": [], "update_norm": []}
    last = 0
    for sample in line:
        if sample.global_step >= onset_step:
            break
        for name, values in seen.items():
            if (value := getattr(sample, name)) is None:
                continue
            if len(values) >= _SOME and not value <= _OUT_OF_PROPORTION * median(values[-32:]):
                return last
            values.append(value)
        if sample.param_norm is not None:
            last = sample.global_step
    return None


def evidence_of(baseline: Baseline, window: Window) -> RecordEvidence:
    """What the run's own readings around the onset show."""
    onset = window.onset_step
    line = [*window.before, *(window.after[step] for step in sorted(window.after))]
    warmup = lr_warmup_steps(baseline)
    ramp_end = warmup[1] if warmup is not None else 0
    base = window.before[-1].global_step if window.before else 0
    near = [s for s in line if min(base, onset - _NEAR) <= s.global_step <= onset]
    jump, at = _lr_jump(near, ramp_end, baseline.lr)
    above = _above_peak((s for step, s in sorted(window.after.items()) if step <= onset), baseline.lr)
    if is_above := jump <= LR_ROSE < above[0]:
        jump, at = above
    name, growth = _spread(line, onset)
    risky = warmup is not None and onset <= warmup[0] + 3 * (warmup[1] - warmup[0])
    return RecordEvidence(
        lr_jump=jump,
        lr_jump_at=at,
        lr_above_peak=is_above,
        in_risky_window=risky,
        spread_growth=growth,
        spread_of=name,
    )


def _lr_jump(near: Sequence[Sample], ramp_end: int, schedule: LrSchedule | None) -> tuple[float, int | None]:
    """A ramp's own first steps double the LR: what comes after the warmup is a jump, or what the schedule has not."""
    found = [
        (after.lr / before.lr, after.global_step)
        for before, after in pairwise(near)
        if before.lr and after.lr and (before.global_step > ramp_end or _off_schedule(before, after, schedule))
    ]
    return max(found, default=(1.0, None))


def _above_peak(steps: Iterable[Sample], schedule: LrSchedule | None) -> tuple[float, int | None]:
    """(the least factor by which the LR of these steps lies above the schedule's peak, the first of them)."""
    found = [(s.lr / schedule.peak, s.global_step) for s in steps if schedule and schedule.peak and s.lr is not None]
    return (min(factor for factor, _ in found), found[0][1]) if found else (1.0, None)


def _off_schedule(before: Sample, after: Sample, schedule: LrSchedule | None) -> bool:
    if schedule is None or not schedule.by_steps or not (planned := schedule.lr(step=before.global_step)):
        return False
    rise = schedule.lr(step=after.global_step) / planned
    return (after.lr or 0.0) > LR_ROSE * rise * (before.lr or math.inf)


def _spread(line: Sequence[Sample], onset: int) -> tuple[str | None, float]:
    grown: list[tuple[float, str]] = []
    for name in ("loss_spread", "grad_norm_spread"):
        values = list(_read(line, name))
        calm = [v for step, v in values if onset - 100 <= step < onset - SUSPECTED_BEFORE and math.isfinite(v)]
        then = [v for step, v in values if onset - SUSPECTED_BEFORE <= step <= onset]
        if calm and then and (usual := median(calm)) > 0:
            grown.append((max(v if math.isfinite(v) else math.inf for v in then) / usual, name))
    growth, of = max(grown, default=(1.0, None))
    return of, growth


def _read(line: Sequence[Sample], name: str) -> Iterator[tuple[int, float]]:
    return ((s.global_step, value) for s in line if (value := getattr(s, name)) is not None)
