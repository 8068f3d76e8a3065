"""A probe's learning rates, by its own journal beside the run's. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.lab.bisect.proof.beside_run import BesideRun
from sentinel.lab.probes.probe import LAST, Probe
from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.starts.evidence import same
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.sample import Sample

_UNCHANGED, _CHANGED = 0.01, 0.05  # Share by which an LR may differ from what it was to be
_AT_PEAK, _LEAST_OF_ONSET = 0.99, 0.5


def unchanged(own: float, run: float) -> bool:
    return same(own, run, _UNCHANGED)


def learning_rates(shown: BesideRun) -> Iterator[str]:
    """The run's own LR of the same step, times the ratio of the schedules: also of a run that leaves its schedule."""
    for own, wanted, _ in _rates(shown):
        if not same(own.lr or 0.0, wanted, _CHANGED):
            yield f"its LR is {own.lr:.3g} at step {own.global_step}, where {wanted:.3g} was asked for"


def unknown_rates(shown: BesideRun) -> Iterator[str]:
    rates = list(_rates(shown))
    if not rates:
        yield "the trainer does not report the LR of its steps: whether it was changed is not known"
    elif all(unchanged(wanted, run) for _, wanted, run in rates):
        yield "its LR is the run's own at every step that both have taken"


def _rates(shown: BesideRun) -> Iterator[tuple[Sample, float, float]]:
    """(the probe's step, the LR that was asked for there, the run's)."""
    overrides = shown.probe.overrides
    now, before = overrides.standing.lr if overrides else None, shown.baseline.lr
    for own, run in shown.pairs if now is not None and before is not None else ():
        planned = _planned(before, run) if before is not None else 0.0
        if own.lr is not None and run.lr is not None and planned and now is not None:
            yield own, run.lr * _planned(now, own) / planned, run.lr


def _planned(schedule: LrSchedule, sample: Sample) -> float:
    batch = sample.global_batch_samples or 0
    samples = max(0, (sample.consumed_samples or 0) - batch)
    tokens = max(0, (sample.consumed_tokens or 0) - batch * (sample.seqlen or 0))
    return schedule.lr(step=sample.global_step, consumed_samples=samples, consumed_tokens=tokens)


def peak(shown: BesideRun) -> Iterator[str]:
    before, onset = shown.baseline.lr, shown.window.onset_step
    at_onset = max((s.lr or 0.0 for step, s in shown.window.after.items() if step <= onset), default=0.0)
    ratios = [(run.lr or 0.0) / planned for _, run in shown.pairs if before and (planned := _planned(before, run))]
    factor = max(ratios, default=1.0)
    for own in shown.samples[-LAST:]:
        planned = factor * _planned(before, own) if before is not None else at_onset
        wanted = max(_AT_PEAK * min(at_onset, planned), _LEAST_OF_ONSET * at_onset)
        if (own.lr or 0.0) < wanted:
            yield (
                f"its LR is {own.lr or 0.0:.3g} at step {own.global_step}, and the run's was {at_onset:.3g} at the "
                "onset: it did not reach the peak"
            )


def refuse_below_peak(longer: LrSchedule, baseline: Baseline, probe: Probe, anchor: Anchor, batch: int | None) -> None:
    """ConfigError where a longer warmup has not come to the run's own LR for the probe's last steps. `batch`: samples
    of a step; None where that is not known."""
    first, before = probe.until_step - LAST + 1, baseline.lr or longer
    samples = (first - 1 - anchor.global_step) * (batch or 0)
    tokens = samples * (baseline.full_seqlen or 0)
    samples, tokens = samples + (anchor.consumed_samples or 0), tokens + (anchor.consumed_tokens or 0)
    now, own = (lr.lr(step=first, consumed_samples=samples, consumed_tokens=tokens) for lr in (longer, before))
    if now < _AT_PEAK * own:
        raise ConfigError(f"a longer LR warmup would not reach its peak within the probe, by step {first}")
