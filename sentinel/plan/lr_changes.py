"""What a rung changes of the learning rate: its peak, and a longer warmup."""

from __future__ import annotations

from dataclasses import replace

from sentinel.plan.baseline import Baseline
from sentinel.plan.ladder import Rung
from sentinel.plan.pacings import position_at
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import LrSchedule, Track

__all__ = ["lr_for"]


def lr_for(rung: Rung, baseline: Baseline, anchor: Anchor) -> LrSchedule | None:
    """The LR with the rung's own factors; what a sequence length warmup changes of it comes on top.

    ConfigError where the rung needs what nobody has reported.
    """
    if rung.lr_warmup_factor is None and rung.lr_factor is None:
        return baseline.lr
    if baseline.lr is None:
        raise ConfigError("it changes the LR, and the trainer has not reported its LR schedule")
    lr = baseline.lr
    if rung.lr_warmup_factor is not None and not lr.warmup:
        raise ConfigError("it makes the LR warmup longer, and the run has none")
    if rung.lr_factor is not None:
        peak = lr.peak * rung.lr_factor
        lr = replace(lr, peak=peak, minimum=min(lr.minimum, peak))
    if rung.lr_warmup_factor is None:
        return lr
    counted = _counted(lr, baseline, anchor)
    lr = replace(lr, warmup=round(lr.warmup * rung.lr_warmup_factor))
    if not baseline.lr_from_start:
        return replace(lr, anchor=counted)
    return _from_the_start(lr, counted, baseline, anchor)


def _counted(lr: LrSchedule, baseline: Baseline, anchor: Anchor) -> int:
    """The target, in the unit that the LR counts."""
    at = {"steps": anchor.global_step, "samples": anchor.consumed_samples, "tokens": anchor.consumed_tokens}
    counted = at[lr.unit]
    if counted is None:
        raise ConfigError(f"the LR counts {lr.unit}, and the target's consumed_{lr.unit} is unknown")
    if lr.unit == "tokens" and baseline.random_ltd is not None and baseline.random_ltd.drops:
        raise ConfigError(  # counted from consumed_tokens, it would stay at 0 until the others have caught up
            "the LR counts the tokens that random-LTD leaves, and nobody has reported how many those are at the target"
        )
    return counted


def _from_the_start(lr: LrSchedule, counted: int, baseline: Baseline, anchor: Anchor) -> LrSchedule:
    """For Megatron, whose LR is peak x consumed / warmup at every start: longer, and from the same beginning.

    Where its decay counts tokens and its warmup samples, the warmup ends with a step: Microsoft's scheduler takes the
    tokens to decay from when it meets that end exactly, and dies where it does not.
    """
    if counted >= lr.warmup_end:
        raise ConfigError(
            f"Megatron counts the LR warmup from the run's beginning, and one of {lr.warmup} "
            f"{lr.unit} is over at the target, {counted} {lr.unit}: give a larger lr_warmup_factor"
        )
    if lr.unit != "samples" or lr.decay_unit != "tokens" or baseline.batch_size is None or baseline.full_seqlen is None:
        return lr
    track = Track(full=baseline.full_seqlen, batch=baseline.batch_size, seqlen=baseline.seqlen)
    return replace(lr, warmup=track.reach(position_at(anchor, baseline), samples=lr.warmup).samples)
