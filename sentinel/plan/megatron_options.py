"""What a restart is to do differently, as changes of a Megatron-DeepSpeed job script.

Megatron reads its options anew at each start and takes the rest from the checkpoint: the number of samples and tokens
consumed, the state of the LR scheduler and of the random numbers. So each change is marked with the starts that it is
for. The option names hold for BigScience's and Microsoft's Megatron-DeepSpeed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sentinel.plan.job_script import Change, RemoveOption, SetJson, SetOption
from sentinel.plan.megatron_schedules import discrete_curriculum, warmup_for
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.pacing import SeqlenSchedule, resized_warmup

__all__ = [
    "LrWarmup",
    "Marked",
    "MegatronRun",
    "SeqlenWarmup",
    "Wanted",
    "changes_at",
    "megatron_changes",
]

Unit = Literal["iterations", "samples", "tokens"]
Start = Literal["first", "later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A change, and the starts of the run that it is for."""

    change: Change

    at: Literal["once", "standing", "afterwards"] = "standing"
    """`once`: only the start at the anchor; `afterwards`: only the starts after it; `standing`: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRun:
    """What the run's job script asks for now, as far as the changes build on it."""

    peak_lr: float
    """`--lr`."""

    min_lr: float = 0.0
    """`--min-lr`."""

    full_seqlen: int
    """`--seq-length`, tokens per sample."""

    global_batch_samples: int
    """`--global-batch-size`."""

    unit: Literal["iterations", "samples"]
    """Whether the run counts `--train-iters` or `--train-samples`; warmup and decay are counted alike."""

    train: int
    """`--train-iters` or `--train-samples`."""

    decay: int | None = None
    """`--lr-decay-iters` or `--lr-decay-samples`; None where it is not given, and Megatron takes `train`."""

    scheduler: Literal["older", "newer"] = "older"
    """Which name the scheduler has in its options: `lr-scheduler` (BigScience) or `opt_param-scheduler` (Microsoft)."""

    lr_warmup_tokens: bool = False
    """Whether the warmup is given as `--lr-warmup-tokens`, which only the newer one knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LrWarmup:
    """A longer LR warmup, by the LR that it is to give at the anchor."""

    anchor_lr: float
    """LR of the first step after the restart, in units of `--lr`; from there it rises as before, to the same peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqlenWarmup:
    """SLW from the anchor on: the five changes of DeepSpeed's tutorial (2.1 to 2.5)."""

    schedule: SeqlenSchedule
    """From a start that is a multiple of 8, by a pacing that can be listed as a staircase."""

    lr_warmup_tokens: int | None = None
    """X of the tutorial: tokens of an LR warmup at the start length. None where an `LrWarmup` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a restart is to do differently; None leaves it."""

    seed: int | None = None
    """Megatron orders all of its data by the seed, also what it has consumed, so it holds at later starts, too."""

    fresh_rng: bool = False
    """Take the random numbers from the seed once, not from the checkpoint: `--no-load-rng`."""

    peak_lr: float | None = None
    lr_warmup: LrWarmup | None = None
    seqlen_warmup: SeqlenWarmup | None = None
    adam_beta2: float | None = None
    clip_grad: float | None = None

    initial_loss_scale: float | None = None
    """Only where the scale is not restored from the checkpoint, and the engine has none of its own."""

    save_interval: int | None = None
    """Iterations."""

    eval_interval: int | None = None
    """Iterations."""


def megatron_changes(wanted: Wanted, run: MegatronRun, anchor: Anchor) -> tuple[Marked, ...]:
    """All that has to change in the script, each marked. ConfigError where the run can't do what is wanted."""
    return (*_data(wanted), *_schedules(wanted, run, anchor), *_plain(wanted))


def changes_at(marked: Sequence[Marked], start: Start) -> tuple[Change, ...]:
    """The changes of the run's original script for the start at the anchor, or for the follow-ups after its first save.

    A follow-up must not be used before that save: it would bring the old schedule back from the anchor's checkpoint.
    """
    left_out = "afterwards" if start == "first" else "once"
    return tuple(each.change for each in marked if each.at != left_out)


def _data(wanted: Wanted) -> Iterator[Marked]:
    if wanted.seed is not None:
        yield _set("--seed", wanted.seed)
    if wanted.fresh_rng:
        yield Marked(change=SetOption(flag="--no-load-rng"), at="once")


def _plain(wanted: Wanted) -> Iterator[Marked]:
    if wanted.adam_beta2 is not None:
        yield _set("--adam-beta2", wanted.adam_beta2)
    if wanted.clip_grad is not None:
        yield _set("--clip-grad", wanted.clip_grad)
    if wanted.initial_loss_scale is not None:
        yield Marked(change=SetOption(flag="--initial-loss-scale", value=_number(wanted.initial_loss_scale)), at="once")
    if wanted.save_interval is not None:
        yield _set("--save-interval", wanted.save_interval)
    if wanted.eval_interval is not None:
        yield _set("--eval-interval", wanted.eval_interval)


def _schedules(wanted: Wanted, run: MegatronRun, anchor: Anchor) -> Iterator[Marked]:
    peak = run.peak_lr if wanted.peak_lr is None else wanted.peak_lr
    if peak < run.min_lr:
        raise ConfigError(f"Megatron refuses a peak LR of {peak:g} below --min-lr {run.min_lr:g}")
    if wanted.peak_lr is not None:
        yield _set("--lr", wanted.peak_lr)
    if wanted.seqlen_warmup is not None:
        yield from _seqlen_warmup(wanted.seqlen_warmup, run)
        yield from _warmup(_resized_warmup(wanted.seqlen_warmup, wanted.lr_warmup, peak, run, anchor), run)
    elif wanted.lr_warmup is not None:
        yield from _warmup(_solved_warmup(wanted.lr_warmup, peak, run, anchor, run.lr_warmup_tokens), run)
    if wanted.peak_lr is not None or wanted.lr_warmup is not None or wanted.seqlen_warmup is not None:
        yield from _override(run, by_tokens=wanted.seqlen_warmup is not None)


def _seqlen_warmup(slw: SeqlenWarmup, run: MegatronRun) -> Iterator[Marked]:
    start = slw.schedule.start
    if start % 8 or run.full_seqlen % 8:
        raise ConfigError(f"sequence lengths should be multiples of 8, not {start} and {run.full_seqlen}")
    if slw.schedule.full != run.full_seqlen:
        raise ConfigError(f"SLW ends at {slw.schedule.full} tokens per sample, and --seq-length is {run.full_seqlen}")
    tokens_per_unit = run.full_seqlen * (run.global_batch_samples if run.unit == "iterations" else 1)
    decay = run.train if run.decay is None else run.decay
    yield Marked(change=SetJson(path=("curriculum_learning",), value=discrete_curriculum(slw.schedule)))
    yield Marked(change=RemoveOption(flag="--rampup-batch-size", values=3))
    yield _set("--train-tokens", run.train * tokens_per_unit)
    yield _set("--train-iters" if run.unit == "iterations" else "--train-samples", 3 * run.train)
    yield _set("--lr-decay-tokens", decay * tokens_per_unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """A length of the LR warmup."""

    length: int
    unit: Unit


def _resized_warmup(
    slw: SeqlenWarmup, lr_warmup: LrWarmup | None, peak: float, run: MegatronRun, anchor: Anchor
) -> _Warmup:
    """The warmup beside SLW, not counted in tokens: they come slowly while the sequences are short."""
    if lr_warmup is not None:
        if slw.lr_warmup_tokens is not None:
            raise ConfigError("the LR warmup beside SLW follows from its tokens or from the LR at the anchor, not both")
        return _solved_warmup(lr_warmup, peak, run, anchor, by_tokens=False)
    if slw.lr_warmup_tokens is None:
        raise ConfigError("SLW needs an LR warmup of its own: by its tokens, or by the LR at the anchor")
    consumed, batch = _consumed(run, anchor, by_tokens=False)
    per_step = run.global_batch_samples if run.unit == "iterations" else None
    length = resized_warmup(slw.lr_warmup_tokens, start=slw.schedule.start, global_batch_samples=per_step)
    if length < consumed:
        raise ConfigError(f"an LR warmup of {length} {run.unit} is over at the anchor, {consumed}: give the LR there")
    return _Warmup(length=consumed + math.ceil((length - consumed) / batch) * batch, unit=run.unit)


def _solved_warmup(warmup: LrWarmup, peak: float, run: MegatronRun, anchor: Anchor, by_tokens: bool) -> _Warmup:
    consumed, batch = _consumed(run, anchor, by_tokens=by_tokens)
    length = warmup_for(warmup.anchor_lr, peak=peak, consumed=consumed, batch=batch)
    return _Warmup(length=length, unit="tokens" if by_tokens else run.unit)


def _consumed(run: MegatronRun, anchor: Anchor, *, by_tokens: bool) -> tuple[int, int]:
    """What the scheduler has counted at the anchor, and what a step adds to it."""
    if by_tokens:
        consumed, batch, unit = anchor.consumed_tokens, 1, "consumed_tokens"
    elif run.unit == "iterations":
        return anchor.global_step, 1
    else:
        consumed, batch, unit = anchor.consumed_samples, run.global_batch_samples, "consumed_samples"
    if consumed is None:
        raise ConfigError(f"the LR warmup can't be solved for: the anchor's {unit} is not known")
    return consumed, batch


def _warmup(warmup: _Warmup, run: MegatronRun) -> Iterator[Marked]:
    names: dict[Unit, str] = {
        "iterations": "--lr-warmup-iters",
        "samples": "--lr-warmup-samples",
        "tokens": "--lr-warmup-tokens",
    }
    decay = run.train if run.decay is None else run.decay
    if warmup.unit != "tokens" and warmup.length >= decay:
        raise ConfigError(f"an LR warmup of {warmup.length} {warmup.unit} would not end before the decay, {decay}")
    for unit, flag in names.items():
        if unit != warmup.unit and not (unit == "tokens" and run.scheduler == "older"):
            yield Marked(change=RemoveOption(flag=flag, values=1))
    yield Marked(change=RemoveOption(flag="--lr-warmup-fraction", values=1))
    yield _set(names[warmup.unit], warmup.length)


def _override(run: MegatronRun, *, by_tokens: bool) -> Iterator[Marked]:
    """The scheduler is told once to take the options and not the checkpoint; the next save holds what it took.

    Where the decay counts tokens and the warmup does not, Microsoft's scheduler writes the end of its warmup into the
    checkpoint and refuses it at the next start for not being an option: from then on the checkpoint has to count.
    """
    name = "lr-scheduler" if run.scheduler == "older" else "opt_param-scheduler"
    yield Marked(change=RemoveOption(flag=f"--use-checkpoint-{name}", values=0), at="once")
    yield Marked(change=SetOption(flag=f"--override-{name}"), at="once")
    if by_tokens and run.scheduler == "newer":
        yield Marked(change=RemoveOption(flag=f"--override-{name}", values=0), at="afterwards")
        yield Marked(change=SetOption(flag=f"--use-checkpoint-{name}"), at="afterwards")


def _set(flag: str, value: float) -> Marked:
    return Marked(change=SetOption(flag=flag, value=_number(value)))


def _number(value: float) -> str:
    """As short as it can be said exactly; whole numbers without a point, which Megatron's int options refuse."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else repr(value)
