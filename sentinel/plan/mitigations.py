"""The rungs of the ladder: what each changes at a restart, and which hypothesis it tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor, Once, Overrides, Standing
from sentinel.vocabulary.pacing import LrSchedule, SeqlenSchedule

__all__ = ["DEFAULT_LADDER", "Baseline", "Rung", "TargetRule", "changes", "overrides_for", "plain_overrides"]

TargetRule = Literal["near", "earlier", "before_risky_window", "scratch"]
"""How far back a rung rolls: see `choose_target`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One mitigation, or a few together, and where it starts from. A `[[policy.ladder]]` table."""

    name: str
    hypothesis: str
    """What is true if this rung helps."""

    target: TargetRule = "near"
    reseed: bool = False
    """Permute the data that is not yet consumed with a new seed."""

    seqlen_start: int | None = None
    """Start SLW at this many tokens per sample; None leaves the sequence length alone."""

    seqlen_total_steps: int | None = None
    """T of the SLW in steps; None is three times the LR warmup (Li, Zhang & He: "a few multiples" of it)."""

    lr_warmup_factor: float | None = None
    """Length of the LR warmup, as a multiple of the run's own, counted from the target; None leaves it alone."""

    lr_factor: float | None = None
    """Peak LR, as a multiple of the run's own; None leaves it alone."""

    def __post_init__(self) -> None:
        if not (self.reseed or self.seqlen_start or self.lr_warmup_factor or self.lr_factor or self.target != "near"):
            raise ConfigError(f"rung {self.name!r} changes nothing: the same run would diverge the same way again")
        for key in ("seqlen_start", "seqlen_total_steps", "lr_warmup_factor", "lr_factor"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ConfigError(f"rung {self.name!r}: {key} should be above 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the run ran with when the incident began: each rung changes this, not what the last rung left."""

    seed: int | None = None
    lr: LrSchedule | None = None
    seqlen: SeqlenSchedule | None = None
    full_seqlen: int | None = None


DEFAULT_LADDER: tuple[Rung, ...] = (
    Rung(name="reseed", hypothesis="the order of the data did it", reseed=True),
    Rung(
        name="reseed + SLW",
        hypothesis="long sequences are too much for weights this young",
        reseed=True,
        seqlen_start=8,
    ),
    Rung(
        name="earlier + reseed + LR warmup x8",
        hypothesis="the learning rate rose faster than Adam's variance could settle",
        target="earlier",
        reseed=True,
        lr_warmup_factor=8,
    ),
)


def overrides_for(
    rung: Rung, baseline: Baseline, *, incident: str, rollback: str, anchor: Anchor, new_seed: int
) -> Overrides:
    """What the trainer is to do differently. ConfigError when the rung needs a schedule that nobody has reported."""
    once = Once(id=rollback, seed=new_seed) if rung.reseed else None
    standing = Standing(lr=_lr(rung, baseline, anchor), seqlen=_seqlen(rung, baseline, anchor))
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=standing, once=once)


def plain_overrides(baseline: Baseline, *, incident: str, rollback: str, anchor: Anchor) -> Overrides:
    """A rollback that changes nothing but the checkpoint: the run's own schedules hold, named so that it is seen."""
    standing = Standing(lr=baseline.lr, seqlen=baseline.seqlen)
    return Overrides(incident=incident, rollback=rollback, anchor=anchor, standing=standing)


def changes(overrides: Overrides, baseline: Baseline) -> tuple[str, ...]:
    """What is changed, each as a phrase that a person reads."""
    said = []
    if overrides.once is not None and overrides.once.seed is not None:
        said.append(f"seed {baseline.seed} -> {overrides.once.seed} for the data not yet consumed")
    lr, seqlen = overrides.standing.lr, overrides.standing.seqlen
    if lr is not None and baseline.lr is not None:
        if lr.peak != baseline.lr.peak:
            said.append(f"peak lr {baseline.lr.peak:g} -> {lr.peak:g}")
        if lr.warmup != baseline.lr.warmup or lr.anchor != baseline.lr.anchor:
            said.append(f"LR warmup {baseline.lr.warmup} -> {lr.warmup} {lr.unit} from {lr.anchor}")
    if seqlen is not None and seqlen != baseline.seqlen:
        said.append(f"seqlen {seqlen.start} -> {seqlen.full} over {seqlen.total_steps} steps from {seqlen.anchor_step}")
    return tuple(said)


def _lr(rung: Rung, baseline: Baseline, anchor: Anchor) -> LrSchedule | None:
    if rung.lr_warmup_factor is None and rung.lr_factor is None:
        return baseline.lr
    if baseline.lr is None:
        raise ConfigError(f"rung {rung.name!r} changes the LR, and the trainer has not reported its LR schedule")
    schedule = baseline.lr
    if rung.lr_factor is not None:
        peak = schedule.peak * rung.lr_factor
        schedule = replace(schedule, peak=peak, minimum=min(schedule.minimum, peak))
    if rung.lr_warmup_factor is not None:
        at = anchor.global_step if schedule.unit == "steps" else anchor.consumed_tokens
        if at is None:
            raise ConfigError(f"rung {rung.name!r}: the LR counts tokens, and the target's consumed_tokens is unknown")
        schedule = replace(schedule, warmup=round(schedule.warmup * rung.lr_warmup_factor), anchor=at)
    return schedule


def _seqlen(rung: Rung, baseline: Baseline, anchor: Anchor) -> SeqlenSchedule | None:
    if rung.seqlen_start is None:
        return baseline.seqlen
    full = baseline.full_seqlen
    if full is None:
        raise ConfigError(f"rung {rung.name!r} warms the sequence length up, and nobody has reported the full length")
    total_steps = rung.seqlen_total_steps
    if total_steps is None:
        if baseline.lr is None or baseline.lr.unit != "steps" or not baseline.lr.warmup:
            raise ConfigError(f"rung {rung.name!r} needs seqlen_total_steps: there is no LR warmup in steps to go by")
        total_steps = 3 * baseline.lr.warmup
    return SeqlenSchedule(
        start=min(rung.seqlen_start, full), full=full, total_steps=total_steps, anchor_step=anchor.global_step
    )
