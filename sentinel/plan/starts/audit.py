"""What is known of an attempt's start and of the run that it is to go on with, and the verdict on it, as data."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sentinel.plan.choose.mitigation import changed_keys
from sentinel.plan.incident.baseline import baseline_of
from sentinel.plan.incident.incident import Rollback
from sentinel.plan.incident.log_events import IncidentEvent
from sentinel.plan.incident.log_outcomes import StartAudited
from sentinel.plan.observation import Checkpoint
from sentinel.plan.starts.proof import Check
from sentinel.vocabulary.sample import LayerVariance, RunStarted, Sample, StateLoaded, StateSaved

FIRST = 20  # steps of a start that are looked at
RECENT = 64  # samples before it that its loss, LR and batch are compared with

WRONG = "wrong checkpoint"
SHARD = "wrong shard of one rank"
MOMENTS = "optimizer state not loaded"
SHARDS, LAYERS = "shards exchanged", "layers exchanged"
PARTLY, FIRST_MOMENT, ADAM_STEP = "weights partly loaded", "first moment not loaded", "Adam's step count"
ROUNDED, WITHIN = "moments rounded", "state differs within layers"
ACCUMULATION, PART = "accumulation changed", "part of a batch skipped"
SKIPPED, REPLAYED, EPOCH = "samples skipped", "samples replayed", "data from epoch start"
NEXT_EPOCH = "epoch skipped"
# Faults that make another model of what is saved next
SPOILS = frozenset({WRONG, SHARD, MOMENTS, SHARDS, LAYERS, PARTLY, FIRST_MOMENT, ADAM_STEP, WITHIN})


class Trail:
    """Every step that the run made before: by it, what comes again is recognised. 36 bytes a step."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self.steps, self.digests = array("q"), array("q")
        self.variances, self.lrs, self.epochs = array("d"), array("d"), array("f")
        self.columns: tuple[array[Any], ...] = (self.steps, self.digests, self.variances, self.lrs, self.epochs)
        for sample in samples:
            self.add(sample)

    def add(self, sample: Sample) -> None:
        self._add(sample.global_step, sample.batch_digest, sample.adam_variance_l1, sample.lr, sample.epoch)

    def _add(self, step: int, digest: int | None, sqrt_v: float | None, lr: float | None, epoch: float | None) -> None:
        self.steps.append(step)
        self.digests.append(-1 if digest is None else digest)
        self.variances.append(-1.0 if sqrt_v is None else sqrt_v)
        self.lrs.append(-1.0 if lr is None else lr)
        self.epochs.append(-1.0 if epoch is None else epoch)

    def note(self, sample: Sample) -> None:
        """The step, its batch and its epoch alone."""
        self._add(sample.global_step, sample.batch_digest, None, None, sample.epoch)

    def cut(self, length: int) -> None:
        """Takes back what was added after the first `length` steps."""
        for column in self.columns:
            del column[length:]

    def foresee(self, step: int, digests: Iterable[int]) -> None:
        """What the steps after that one would be trained on, where they were not made."""
        for after, digest in enumerate(digests, step + 1):
            if not self.steps or after > self.steps[-1]:
                self._add(after, digest, None, None, None)

    def lr(self, step: int) -> float | None:
        at = self._index(step)
        return self.lrs[at] if at is not None and self.lrs[at] >= 0 else None

    def digest(self, step: int) -> int | None:
        at = self._index(step)
        return self.digests[at] if at is not None and self.digests[at] >= 0 else None

    def epoch(self, step: int) -> float | None:
        at = self._index(step)
        return self.epochs[at] if at is not None and self.epochs[at] >= 0 else None

    def _index(self, step: int) -> int | None:
        at = step - self.steps[0] if self.steps else -1  # as a rule the steps have no gaps
        if 0 <= at < len(self.steps) and self.steps[at] == step:
            return at
        return self.steps.index(step) if step in self.steps else None

    def steps_fed(self, digest: int) -> list[int]:
        """The steps that were trained on this batch."""
        if digest not in self.digests:
            return []
        return [step for step, known in zip(self.steps, self.digests, strict=True) if known == digest]

    def step_with_variance(self, variance_l1: float, tolerance: float) -> int | None:
        """The last step after which Adam's variance was just this."""
        near = tolerance * variance_l1
        pairs = zip(self.steps, self.variances, strict=True)
        return max((step for step, known in pairs if abs(known - variance_l1) <= near), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ancestor:
    """The run up to the step that the attempt says it resumes from, and what was made after it before."""

    started: RunStarted | None = None  # of the attempt that saved the checkpoint
    recent: tuple[Sample, ...] = ()  # the last `RECENT` samples up to that step
    later: tuple[Sample, ...] = ()  # up to `FIRST` samples after it, of the attempt that saved the checkpoint
    layers: LayerVariance | None = None  # after that step
    saved: StateSaved | None = None  # the state that was saved at that step; None from an older hook
    trail: Trail = field(default_factory=Trail)
    stops: tuple[int, ...] = ()  # steps before it at which the run was saved or resumed, the last ones

    def at(self, step: int) -> Sample | None:
        return self.recent[-1] if self.recent and self.recent[-1].global_step == step else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start."""

    started: RunStarted
    samples: tuple[Sample, ...] = ()  # its first steps, `FIRST` at most, in order
    loaded: StateLoaded | None = None
    over: bool = False  # whether it will make no more steps
    ancestor: Ancestor | None = None  # None where nothing is known of one
    newest: Checkpoint | None = None  # the newest checkpoint that an earlier attempt has left; None for none
    pointed: frozenset[int] | None = None  # steps that it was told to resume from; 0: from scratch; None: unknown
    rollback: Rollback | None = None  # whose overrides are in force

    @property
    def resumed_from(self) -> int:
        return self.started.resumed_from or 0

    @property
    def decided(self) -> frozenset[str]:
        """The settings that a rung has decided to be other than the ancestor's, as `changed_keys` names them."""
        before = self.ancestor.started if self.ancestor else None
        if self.rollback is None or (before is not None and before.rollback == self.rollback.id):
            return frozenset()
        keys = set(changed_keys(self.rollback.overrides, baseline_of(before)))
        once = self.rollback.overrides.once
        if self.resumed_from > self.rollback.overrides.anchor.global_step and once is not None:
            keys -= {"seed", "skip_samples", "reset_moments", "loss_scale"}  # made before the checkpoint was saved
        return frozenset(keys)


class Continued(StrEnum):
    """Unknown never acts."""

    YES = "continued"
    NO = "not continued"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAudit:
    attempt: int
    resumed_from: int  # 0 from scratch
    verdict: Continued
    reason: str  # as a sentence; names the likeliest fault
    fault: str | None = None  # in the words of docs/STARTS.md
    settled: bool = True  # whether further steps are not waited for
    checks: tuple[Check, ...] = ()

    @property
    def spoils(self) -> bool:
        """Whether the checkpoints that are saved next hold another model than the run's."""
        return self.fault in SPOILS


_RECORDED_AS_IT_IS = ("attempt", "resumed_from", "fault", "reason")


def audited(found: StartAudit) -> StartAudited:
    """For the incident log."""
    same, checks = {n: getattr(found, n) for n in _RECORDED_AS_IT_IS}, tuple(check.recorded for check in found.checks)
    return StartAudited(incident=None, **same, verdict=str(found.verdict), checks=checks)


def audits_of(events: tuple[IncidentEvent, ...]) -> Mapping[int, StartAudit]:
    """Attempt -> its audit, as the incident log has it."""
    return {
        e.attempt: StartAudit(**{n: getattr(e, n) for n in _RECORDED_AS_IT_IS}, verdict=Continued(e.verdict))
        for e in events
        if isinstance(e, StartAudited)
    }
