"""What a restart is to do differently, as changes of a Megatron-DeepSpeed job script.

Megatron reads its options anew at each start and takes the rest from the checkpoint: the number of samples and tokens
consumed, the state of the LR scheduler and of the random numbers. So each change is marked with the starts that it is
for. The option names hold for BigScience's and Microsoft's Megatron-DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption
from sentinel.jobscript.megatron_schedules import discrete_curriculum
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.pacing import SeqlenSchedule

__all__ = [
    "LrWarmup",
    "Marked",
    "MegatronRun",
    "SeqlenWarmup",
    "Wanted",
    "changes_at",
    "megatron_changes",
]

Unit = Literal["steps", "samples", "tokens"]
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

    min_lr: float = 0.0
    """`--min-lr`."""

    peak_lr: float
    """`--lr`."""

    full_seqlen: int
    """`--seq-length`, tokens per sample."""

    global_batch_samples: int
    """`--global-batch-size`."""

    unit: Literal["steps", "samples"]
    """Whether the run counts `--train-iters` or `--train-samples`; warmup and decay are counted alike."""

    train: int
    """`--train-iters` or `--train-samples`."""

    decay: int | None = None
    """`--lr-decay-iters` or `--lr-decay-samples`; None where it is not given, and Megatron takes `train`."""

    scheduler: Literal["older", "newer"] = "older"
    """Which name the scheduler has in its options: `lr-scheduler` (BigScience) or `opt_param-scheduler` (Microsoft)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LrWarmup:
    """Another LR warmup, counted from the run's beginning, as Megatron's schedulers count."""

    length: int
    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqlenWarmup:
    """SLW: the changes of DeepSpeed's tutorial (2.1 to 2.4); the fifth, the LR warmup, is an `LrWarmup`."""

    schedule: SeqlenSchedule
    """From a start that is a multiple of 8, by a pacing that can be listed as a staircase."""

    train_tokens: int
    """`--train-tokens`: where the run ends."""

    decay_tokens: int
    """`--lr-decay-tokens`."""

    warmup_end_tokens: int | None = None
    """Tokens at which a warmup that is over, or is none, ended: what Microsoft's scheduler has to decay from. None
    where an `LrWarmup` is still to come."""


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


def megatron_changes(wanted: Wanted, run: MegatronRun) -> tuple[Marked, ...]:
    """All that has to change in the script, each marked. ConfigError where the run can't do what is wanted."""
    return (*_data(wanted), *_schedules(wanted, run), *_plain(wanted))


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


def _schedules(wanted: Wanted, run: MegatronRun) -> Iterator[Marked]:
    peak, slw = run.peak_lr if wanted.peak_lr is None else wanted.peak_lr, wanted.seqlen_warmup
    if peak < run.min_lr:
        raise ConfigError(f"Megatron refuses a peak LR of {peak:g} below --min-lr {run.min_lr:g}")
    if wanted.peak_lr is not None:
        yield _set("--lr", wanted.peak_lr)
    if slw is not None:
        yield from _seqlen_warmup(slw, run)
    if wanted.lr_warmup is not None:
        yield from _lr_warmup(wanted.lr_warmup, run, by_tokens=slw is not None)
    elif slw is not None and slw.warmup_end_tokens is not None and run.scheduler == "newer":
        yield from _lr_warmup(LrWarmup(length=slw.warmup_end_tokens, unit="tokens"), run, by_tokens=True)
    if wanted.peak_lr is not None or wanted.lr_warmup is not None or slw is not None:
        yield from _override(run, by_tokens=slw is not None)


def _seqlen_warmup(slw: SeqlenWarmup, run: MegatronRun) -> Iterator[Marked]:
    start = slw.schedule.start
    if start % 8 or run.full_seqlen % 8:
        raise ConfigError(f"sequence lengths should be multiples of 8, not {start} and {run.full_seqlen}")
    if slw.schedule.full != run.full_seqlen:
        raise ConfigError(f"SLW ends at {slw.schedule.full} tokens per sample, and --seq-length is {run.full_seqlen}")
    name = "iters" if run.unit == "steps" else "samples"
    yield Marked(change=SetJson(path=("curriculum_learning",), value=discrete_curriculum(slw.schedule)))
    yield Marked(change=RemoveOption(flag="--rampup-batch-size", values=3))
    yield _set("--train-tokens", slw.train_tokens)
    yield _set(f"--train-{name}", _most(slw, run))
    yield _set("--lr-decay-tokens", slw.decay_tokens)
    yield Marked(change=RemoveOption(flag=f"--lr-decay-{name}", values=1))


def _most(slw: SeqlenWarmup, run: MegatronRun) -> int:
    """Samples or iterations that do not end the run before its tokens: three times those of the full length."""
    each = run.full_seqlen * (run.global_batch_samples if run.unit == "steps" else 1)
    return max(run.train, 3 * -(-slw.train_tokens // each))


def _lr_warmup(warmup: LrWarmup, run: MegatronRun, *, by_tokens: bool) -> Iterator[Marked]:
    names: dict[Unit, str] = {
        "steps": "--lr-warmup-iters",
        "samples": "--lr-warmup-samples",
        "tokens": "--lr-warmup-tokens",
    }
    decay = run.train if run.decay is None or by_tokens else run.decay
    if warmup.unit == run.unit and warmup.length >= decay:
        counted = "iterations" if run.unit == "steps" else "samples"
        raise ConfigError(f"an LR warmup of {warmup.length} {counted} would not end before the decay, {decay}")
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
