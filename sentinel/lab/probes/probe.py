"""A probe: a short training from a checkpoint, beside the run, with one change, in a folder of its own.

What a probe is, what it may cost, and what it has shown beside the run's own readings of the same steps. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from sentinel.judge.history import Attempt
from sentinel.judge.noise_band import median, robust_sigma
from sentinel.judge.series import Series
from sentinel.judge.thresholds import Thresholds
from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import Sample

LAST = 8  # Steps at the end of a probe whose median loss is compared
_HEALTHY = 32  # Steps before the onset that show the healthy trend

READINGS = (
    *("batch_digest", "lr", "seqlen", "loss", "loss_spread", "grad_norm", "grad_norm_spread", "adam_variance_l1"),
    *("adam_variance_max", "momentum_l2", "update_norm", "param_norm"),
)
"""What is compared of a step, in the order in which a step computes it: the first that differs is where it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(Described):
    """One short training. Its trainer reads `overrides` as overrides.json, and gets the options and variables too."""

    name: str  # Of its folder and of its job; unique among the probes of one incident
    tag: str | None  # The checkpoint that it begins from; None is from scratch
    global_step: int  # Of that checkpoint; 0 from scratch
    until_step: int  # It ends after this optimizer step
    change: str = ""  # What it changes, in words; "" is nothing
    overrides: Overrides | None = None  # None: no overrides.json
    options: tuple[str, ...] = ()  # Of the trainer's command line, added last, each with its value: `--flag=value`
    environment: Mapping[str, str] = field(default_factory=dict)
    exclude_nodes: tuple[str, ...] = ()  # Slurm: nodes that it may not run on

    def __post_init__(self) -> None:
        checked_name(self.name, "the probe's name")


# verdict: its question was answered before its last step; at its end: it has taken its last step; failed: its trainer
# ended by itself before; stopped: its time or the budget was spent, or it is not needed any more
Ended = Literal["verdict", "at its end", "failed", "stopped"]
# not tried: its journal does not confirm that its change was in force, or that nothing else had changed
Outcome = Literal["diverged", "calm", "unknown", "not tried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult(Described):
    """What a probe has shown, as its record keeps it."""

    name: str
    ended: Ended
    outcome: Outcome
    why: str  # As a sentence
    steps: int = 0  # Optimizer steps that it took
    seconds: float = 0.0  # From its start to its end
    gpu_hours: float | None = None  # None where its trainer has not reported its ranks
    compared: int = 0  # Steps that both the run and the probe have taken
    differs_at: int | None = None  # The first of them at which a reading differs from the run's; None: none does
    differs_in: tuple[str, ...] = ()  # Which, in the order of READINGS
    losses: tuple[tuple[int, float], ...] = ()  # (global_step, loss in nats)

    @property
    def sentence(self) -> str:
        return f"{self.outcome}: {self.why}"

    @property
    def exact(self) -> bool | None:
        """Whether it repeated the run bit for bit; None where no step can be compared."""
        return self.differs_at is None if self.compared else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all probes of one incident may cost."""

    parallel: int = 1  # At once
    gpu_hours: float | None = None  # In all; None is no limit
    probe_s: float = math.inf  # Of one probe, seconds from its start
    count: int = 8  # Probes in all, with those that were lost and begun anew

    def refusal(self, ended: Sequence[ProbeResult], running: int) -> str | None:
        """Why no further probe may begin now, as a sentence; None where one may. A running probe, and the next one,
        are reckoned at the mean price of those that have ended."""
        if len(ended) + running >= self.count:
            return f"{self.count} probes were run, as many as [bisect] max_probes allows"
        prices = [result.gpu_hours for result in ended if result.gpu_hours is not None]
        if self.gpu_hours is not None and prices:
            each = sum(prices) / len(prices)
            if sum(prices) + (running + 1) * each > self.gpu_hours:
                return f"{sum(prices):.3g} of {self.gpu_hours:g} GPU-hours are spent, and a probe takes {each:.3g}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The run's own readings that a probe is compared with."""

    before: tuple[Sample, ...]  # Of its lineage up to the checkpoint, in order
    after: Mapping[int, Sample]  # global_step -> what the run read there, after the checkpoint
    onset_step: int
    until_step: int  # Where the run was known to have diverged
    thresholds: Thresholds

    @property
    def attempt(self) -> int:
        return next((sample.attempt for sample in self.after.values()), 1)

    @property
    def steps(self) -> int:
        """From the checkpoint to the alarm."""
        return self.until_step - (self.before[-1].global_step if self.before else 0)


def over(probe: Probe, attempt: Attempt | None, window: Window) -> str | None:
    """Why the probe's question is answered by now, as a sentence; None while it is open."""
    if attempt is None or not attempt.samples:
        return None
    if attempt.samples[-1].global_step >= probe.until_step:
        return f"it has taken step {probe.until_step}"
    alarm = alarmed_at(attempt.samples, window)
    return None if alarm is None else f"it is known at step {alarm} to have diverged"


def result_of(
    probe: Probe, attempt: Attempt | None, window: Window, *, ended: Ended | None = None, seconds: float = 0.0
) -> ProbeResult:
    """What the probe has shown up to its last step. `ended`: where its trainer had not come to its end."""
    samples = [s for s in (attempt.samples if attempt else ()) if s.global_step <= probe.until_step]
    last = samples[-1].global_step if samples else probe.global_step
    ranks = attempt.started.world_size if attempt is not None and attempt.started is not None else None
    outcome, why = _outcome(samples, window)
    if ended in ("failed", "stopped") and outcome != "diverged":
        who = "its trainer ended by itself (see its job.log)" if ended == "failed" else "it was stopped"
        outcome, why = "unknown", f"{who} at step {last}, before step {probe.until_step}"
    differs_at, differs_in, compared = first_difference(samples, window.after)
    return ProbeResult(
        name=probe.name,
        ended=ended or ("at its end" if last >= probe.until_step else "verdict"),
        outcome=outcome,
        why=why,
        steps=max(0, last - probe.global_step),
        seconds=round(seconds, 3),
        gpu_hours=None if ranks is None else ranks * seconds / 3600,
        compared=compared,
        differs_at=differs_at,
        differs_in=differs_in,
        losses=tuple((s.global_step, s.loss) for s in samples),
    )


def first_difference(samples: Iterable[Sample], run: Mapping[int, Sample]) -> tuple[int | None, tuple[str, ...], int]:
    """(the first step at which a reading differs from the run's, which ones, how many steps were compared). Bit for
    bit: the journal holds a float's shortest exact form. What only one of them has measured is not compared."""
    compared = 0
    for sample in samples:
        if (own := run.get(sample.global_step)) is None:
            continue
        compared += 1
        if differ := tuple(name for name in READINGS if _differ(getattr(sample, name), getattr(own, name))):
            return sample.global_step, differ, compared
    return None, (), compared


def _differ(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return one != other and not (math.isnan(one) and math.isnan(other))


def alarmed_at(samples: Iterable[Sample], window: Window) -> int | None:
    """The step at which the judge of the run's own readings calls the probe diverged; None where it does not."""
    series = Series(window.thresholds, window.before)
    for sample in samples:
        series.push(replace(sample, attempt=window.attempt))
        if series.alarm is not None:
            return sample.global_step
    return None


def _outcome(samples: Sequence[Sample], window: Window) -> tuple[Outcome, str]:
    """Diverged where the judge says so, or where its last losses are nearer to the run's than to its healthy ones; of a
    run that has come back, those up to its alarm. Calm where they follow the healthy trend; between the two, unknown.
    Compared at equal sequence lengths: a shorter one's loss is another quantity, and says nothing of calm."""
    if (alarm := alarmed_at(samples, window)) is not None:
        return "diverged", f"known at step {alarm}"
    if not samples or samples[-1].global_step < window.onset_step:
        return "unknown", f"it has not come to step {window.onset_step}, where the run left its band"
    length, run = samples[-1].seqlen, [window.after[step] for step in sorted(window.after)]
    last = [s for s in samples[-LAST:] if s.seqlen == length]
    if (now := _level(last)) is None or not math.isfinite(now):
        return "diverged", f"its loss is {now} at step {samples[-1].global_step}"
    known = [s for s in (*window.before, *run) if s.global_step < window.onset_step]
    healthy = [s for s in known if s.seqlen == length][-_HEALTHY:]
    if not healthy and not known and all(s.seqlen == length for s in samples):
        return _by_itself(samples, now, window)
    if (level := _level(healthy)) is None or len(last) < min(LAST, len(samples)):
        return "unknown", f"its last steps are {length} tokens long, and the run's healthy steps there are not known"
    ill = _level([s for s in run if s.global_step > window.onset_step and s.seqlen == length][-LAST:])
    limit = _above(level, window)
    if ill is not None and ill <= limit:  # the run has come back by itself since: compared is how far both rose before
        ill, now = _level(_up_to_alarm(run, window)), _level(_up_to_alarm(samples, window)) or now
    if ill is not None and limit < ill < math.inf:
        limit = (level + ill) / 2
    shown = f"loss {now:.4g} at step {samples[-1].global_step}; healthy {level:.4g}"
    shown = shown if ill is None else f"{shown}, the run's {ill:.4g}"
    if now > limit:
        return "diverged", shown
    why = _off_trend([s for s in samples if s.seqlen == length], healthy, now, window)
    return ("calm", shown) if why is None else ("unknown", f"{shown}: {why}")


def _off_trend(samples: Sequence[Sample], healthy: Sequence[Sample], now: float, window: Window) -> str | None:
    """Why a loss that is not the illness is not calm either, as a phrase; None where it follows the healthy trend: no
    higher than the healthy level and its noise, and not risen by that noise since its lowest."""
    level = _level(healthy) or now
    noise = max(window.thresholds.band_floor * level, _noise_of_median(healthy))
    if now > level + noise:
        return f"above the healthy trend, up to {level + noise:.4g}"
    since = [s for s in samples if s.global_step >= window.onset_step]
    lowest = min((_level(since[n : n + LAST]) or now for n in range(max(1, len(since) - LAST + 1))), default=now)
    if now > lowest + noise:
        return f"it rises still, from {lowest:.4g}"
    return None


def _noise_of_median(healthy: Sequence[Sample]) -> float:
    """Three standard errors of a median over LAST losses, nats; 0 where there are no two."""
    losses = [s.loss for s in healthy if math.isfinite(s.loss)]
    sigma = robust_sigma([abs(after - before) for before, after in pairwise(losses)])
    return 3 * math.sqrt(math.pi / 2 / LAST) * sigma


def _above(healthy: float, window: Window) -> float:
    """The loss from which on it is told from the healthy level, nats."""
    return healthy * (1 + 4 * window.thresholds.band_floor)


def _up_to_alarm(samples: Sequence[Sample], window: Window) -> list[Sample]:
    return [s for s in samples if window.onset_step <= s.global_step <= window.until_step]


def _by_itself(samples: Sequence[Sample], now: float, window: Window) -> tuple[Outcome, str]:
    """Where the run has no healthy step: against its own beginning, at the same length."""
    began = _level(samples[:LAST]) or now
    said = f"loss {now:.4g} after {began:.4g} at its beginning"
    if now > _above(began, window):
        return "diverged", said
    return ("calm" if now <= began * (1 + window.thresholds.band_floor) else "unknown"), said


def _level(samples: Sequence[Sample]) -> float | None:
    """Median loss, nats; nan and inf count as inf. None without samples."""
    if not samples:
        return None
    return median([s.loss if math.isfinite(s.loss) else math.inf for s in samples])
