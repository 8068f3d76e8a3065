"""What a rollback costs and what the restart will run with at its next saves: for the dry run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident, Rollback
from sentinel.plan.starts.proof import unreported
from sentinel.vocabulary.codec import Described
from sentinel.vocabulary.pacing import LrSchedule, trained_tokens

_SAVES_SHOWN = 4
_FORESEEN_STEPS = 100_000  # a batch that warms up is counted step by step; for later saves it is left open


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Described):
    """Steps and GPU-hours. None where the run's pace, its size or its save interval is not known."""

    lost_steps: int  # steps of training that are thrown away: from the target to the last one made
    lost_gpu_hours: float | None  # what those steps took: lost_steps x median step time x world size
    steps_to_next_save: int | None  # steps until the run would save again, at the interval of its last checkpoints
    waiting_gpu_hours: float | None  # waiting for it costs this, and throws away nothing if the run heals, else all


def price(decision: Rollback, facts: Facts) -> Price:
    """What carrying the decision out costs, against waiting for one more save."""
    lost, interval = lost_steps(decision.target_step, facts), save_interval(facts)
    left = None if interval is None else interval - (_last_trained(facts) - _newest_checkpoint(facts)) % interval
    return Price(
        lost_steps=lost,
        lost_gpu_hours=gpu_hours(lost, facts),
        steps_to_next_save=left,
        waiting_gpu_hours=None if left is None else gpu_hours(left, facts),
    )


def lost_steps(target_step: int, facts: Facts) -> int:
    """Optimizer steps that a rollback to the target throws away: from there to the last step of the line in force."""
    return max(0, _last_trained(facts) - target_step)


def lost_so_far(incidents: Iterable[Incident]) -> int:
    return sum(r.lost_steps for i in incidents for r in i.rollbacks)


def _last_trained(facts: Facts) -> int:
    known = facts.readings.trained_to if facts.readings.trained_to is not None else facts.readings.last_step
    return known if known is not None else _newest_checkpoint(facts)  # no step reported yet


def _newest_checkpoint(facts: Facts) -> int:
    return max((c.global_step for c in facts.folders.checkpoints), default=0)


def save_interval(facts: Facts) -> int | None:
    """Median distance of the last checkpoints, in steps; None for fewer than two."""
    gaps = [b.global_step - a.global_step for a, b in pairwise(facts.folders.checkpoints[-10:])]
    return max(1, round(median(gaps))) if gaps else None


def unconfirmed(decision: Rollback, facts: Facts) -> tuple[str, ...]:
    """What the new attempt will not be able to prove, going by what the trainer has reported so far; sentences."""
    said, overrides = [], decision.overrides
    if not facts.readings.last_step:
        said.append("the trainer has reported nothing so far: that it restarts at all will show in its first report")
    said += dict.fromkeys(unreported(overrides, facts.settings.baseline).values())
    if decision.target_step and overrides.anchor.consumed_samples is None:
        said.append(f"the first sample: consumed_samples at step {decision.target_step} is in no journal")
    return tuple(said)


def gpu_hours(steps: float, facts: Facts) -> float | None:
    """What so many steps take; None where nobody measured the pace, or the run's size is not known."""
    if facts.liveness.step_time_s is None or facts.settings.world_size is None:
        return None
    return steps * facts.liveness.step_time_s * facts.settings.world_size / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming(Described):
    """What the restart will run with when it comes to one of its next saves."""

    global_step: int
    lr: float | None  # None: the schedule is not known, or goes by tokens or samples that can't be counted beforehand
    seqlen: int | None  # tokens per sample; None: the validations decide it, or the full length was not reported
    # samples of the step over all ranks, before they are rounded to micro-batches; None: not reported, or not countable
    global_batch_samples: int | None
    kept_tokens: int | None  # tokens of a sample that the dropping layers keep; None: all, or the length is not known
    curriculum: str | None  # the largest difficulties that are drawn from, as `voc up to 31 %`; None without a pacing

    def __str__(self) -> str:  # what is not switched on is left out
        lr = f"lr {self.lr:.3g}" if self.lr is not None else "lr not known"
        said = [f"at step {self.global_step}: {lr}", f"seqlen {self.seqlen or 'not known'}"]
        if self.global_batch_samples is not None:
            said.append(f"{self.global_batch_samples} samples")
        if self.kept_tokens is not None:
            said.append(f"random-LTD keeps {self.kept_tokens} tokens")
        return ", ".join([*said, *([self.curriculum] if self.curriculum is not None else [])])


# consumed tokens and samples before a step, and the step's own samples; None from where it can't be told beforehand
_Counted = tuple[int | None, int | None, int | None]


def coming_saves(decision: Rollback, facts: Facts) -> tuple[Coming, ...]:
    """The first step of the restart and its next saves. () where nobody knows how often it saves."""
    if (interval := save_interval(facts)) is None:
        return ()
    first = decision.target_step + 1
    steps = dict.fromkeys([first, *(decision.target_step + n * interval for n in range(1, _SAVES_SHOWN + 1))])
    counted = dict(_counted(decision, facts, last=min(max(steps), first + _FORESEEN_STEPS)))
    return tuple(_coming(step, decision, facts, counted.get(step, (None, None, None))) for step in steps)


def _coming(step: int, decision: Rollback, facts: Facts, counted: _Counted) -> Coming:
    standing = decision.overrides.standing
    seqlen = standing.seqlen.foreseen(step) if standing.seqlen else facts.settings.baseline.full_seqlen
    ltd, curriculum = standing.random_ltd, standing.curriculum
    kept = ltd.kept_tokens(step, seqlen) if ltd is not None and ltd.drops and seqlen is not None else None
    return Coming(
        global_step=step,
        lr=_lr(standing.lr, step, counted),
        seqlen=seqlen,
        global_batch_samples=counted[2],
        kept_tokens=kept if kept != seqlen else None,
        curriculum=None if curriculum is None or not curriculum.metrics else curriculum.at(step),
    )


def _lr(schedule: LrSchedule | None, step: int, counted: _Counted) -> float | None:
    if schedule is None:
        return None
    tokens, samples, _ = counted
    known = {"steps": step, "tokens": tokens, "samples": samples}
    if any(known[unit] is None for unit in (schedule.unit, schedule.decay_unit or schedule.unit)):
        return None
    return schedule.lr(step=step, consumed_tokens=tokens or 0, consumed_samples=samples or 0)


def _counted(decision: Rollback, facts: Facts, last: int) -> Iterator[tuple[int, _Counted]]:
    standing, anchor, full = decision.overrides.standing, decision.overrides.anchor, facts.settings.baseline.full_seqlen
    batch, consumed = standing.batch_size or facts.settings.baseline.batch_size, anchor.consumed_samples
    # what random-LTD leaves goes by layers that only the trainer counts, also where it dropped before
    drops = any(ltd is not None and ltd.drops for ltd in (standing.random_ltd, facts.settings.baseline.random_ltd))
    tokens = None if drops else anchor.consumed_tokens
    for step in range(decision.target_step + 1, last + 1):
        samples = None
        if batch is not None and (consumed is not None or not batch.warms_up):
            samples = batch.samples(consumed or 0)
        yield step, (tokens, consumed, samples)
        length = standing.seqlen.foreseen(step) if standing.seqlen else full
        if tokens is not None and length is not None and samples is not None:
            trained = length if full is None else trained_tokens(length, full=full, shorten=standing.shorten)
            tokens += samples * trained
        else:
            tokens = None
        if consumed is not None and samples is not None:
            consumed += samples
