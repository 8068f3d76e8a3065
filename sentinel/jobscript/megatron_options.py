"""Megatron's options as schedules, and what a restart is to do differently as changes of its job script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sentinel.jobscript import Change, RemoveOption, SetJson, SetOption
from sentinel.jobscript.derived import track_of
from sentinel.jobscript.facts import ScriptFacts
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.overrides import Once
from sentinel.vocabulary.pacing import LrSchedule, Position, SeqlenSchedule, staircase
from sentinel.vocabulary.training_settings import TrainingSettings, settings_of


def lr_schedule(facts: ScriptFacts, *, style: str | None) -> LrSchedule | None:
    """Megatron's LR as its options ask for it, in the unit that they count in and from the run's beginning.

    peak x consumed / warmup, whatever the start resumes from. `style` is --lr-decay-style; a decay that is no cosine is
    left out. None where the options do not show the warmup.

    Source: `get_lr` of megatron/learning_rates.py (BigScience) and optimizer_param_scheduler.py (Microsoft).
    """
    unit, warmup = _warmup(facts)
    if facts.lr is None or warmup is None:
        return None
    lr = LrSchedule(peak=facts.lr, warmup=warmup, decay_end=0, minimum=min(facts.min_lr or 0.0, facts.lr), unit=unit)
    if style != "cosine":
        return lr
    if facts.lr_decay_tokens is None:
        counted, end = run_unit(facts), _decay(facts)
        start = warmup if counted == unit else None
    else:
        counted, end = "tokens", facts.lr_decay_tokens
        start = warmup if unit == "tokens" else warmup_end_tokens(facts, lr)
    if end is None or start is None:
        return lr
    return replace(lr, decay_unit=None if counted == unit else counted, decay_start=start, decay_end=end)


def run_unit(facts: ScriptFacts) -> str:
    """Whether the run, its LR warmup and its decay count samples or steps."""
    return "samples" if facts.train_samples is not None else "steps"


def _suffix(facts: ScriptFacts) -> str:
    return "samples" if run_unit(facts) == "samples" else "iters"


def _counted(facts: ScriptFacts, what: str) -> int | None:
    """How long `train`, `lr_decay` or `lr_warmup` is in the run's own unit."""
    number: int | None = getattr(facts, f"{what}_{_suffix(facts)}")
    return number


def _warmup(facts: ScriptFacts) -> tuple[str, int | None]:
    if facts.lr_warmup_tokens is not None:
        return "tokens", facts.lr_warmup_tokens
    if facts.lr_warmup_fraction:
        decay = _decay(facts)
        return run_unit(facts), None if decay is None else round(facts.lr_warmup_fraction * decay)
    return run_unit(facts), _counted(facts, "lr_warmup")


def _decay(facts: ScriptFacts) -> int | None:
    """The samples or steps of the decay; those of the run where it is not given."""
    return _counted(facts, "lr_decay") or _counted(facts, "train")


def decay_tokens(facts: ScriptFacts) -> int | None:
    """What --lr-decay-tokens has to be for the decay that the options ask for, at the full length."""
    decay, full, batch = _decay(facts), facts.seq_length, facts.global_batch_size
    if facts.lr_decay_tokens is not None:
        return facts.lr_decay_tokens
    if decay is None or full is None or batch is None:
        return None
    return decay * full * (1 if run_unit(facts) == "samples" else batch)


def warmup_end_tokens(facts: ScriptFacts, lr: LrSchedule) -> int | None:
    """Tokens that are consumed where the warmup of the options ends; None where that can't be counted."""
    if lr.unit == "tokens":
        return lr.warmup
    track = track_of(facts)
    return None if track is None else track.tokens_at(Position(), lr.unit, lr.warmup)


def discrete_curriculum(schedule: SeqlenSchedule) -> dict[str, Any]:
    """DeepSpeed's `curriculum_learning` block with the schedule as a staircase of absolute steps.

    `fixed_linear` would count from step 0, and be over before a restart has begun.
    """
    if not schedule.warms_up:
        raise ConfigError(f"a sequence length {schedule} does not warm up")
    stages = staircase(schedule)
    lengths, last_steps = list(stages.difficulties), [schedule.anchor_step + step for step in stages.max_steps]
    if len(lengths) == 1:  # one step from the start to the full length
        lengths, last_steps = [schedule.start, schedule.full], [schedule.anchor_step]
    return {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": lengths[0],
        "max_difficulty": schedule.full,
        "schedule_type": "fixed_discrete",
        "schedule_config": {"difficulty": lengths, "max_step": last_steps},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A change, and the starts of the run that it is for."""

    change: Change
    # once: only the start at the anchor; afterwards: only the starts after it; standing: all of them.
    at: Literal["once", "standing", "afterwards"] = "standing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeqlenWarmup:
    """SLW: the changes of DeepSpeed's tutorial (2.1 to 2.4); the fifth is `Wanted.lr_warmup`."""

    schedule: SeqlenSchedule  # From a start that is a multiple of 8, by a pacing that can be listed as a staircase
    train_tokens: int  # `--train-tokens`: where the run ends
    decay_tokens: int  # `--lr-decay-tokens`
    warmup_end_tokens: int | None = None
    """Tokens at which a warmup that is over, or is none, ended: what Microsoft's scheduler has to decay from. None
    where another `lr_warmup` is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a restart is to do differently; None leaves it."""

    numbers: Mapping[str, float] = field(default_factory=dict)  # What is written as it is: a key of `OPTIONS` -> value
    peak_lr: float | None = None
    lr_warmup: LrSchedule | None = None  # Of which its warmup counts, from the run's beginning, as Megatron counts
    seqlen_warmup: SeqlenWarmup | None = None


# Key of `standing` or `once` in overrides.json -> the option that holds its value as it is. Megatron orders all of its
# data by the seed, also what it has consumed, so a new one holds at later starts, too.
OPTIONS = {name: s.option for cls in (TrainingSettings, Once) for name, s in settings_of(cls).items() if s.option}


def megatron_changes(wanted: Wanted, facts: ScriptFacts) -> tuple[Marked, ...]:
    """All that has to change in the script, each marked. ConfigError where the run can't do what is wanted."""
    plain = [  # a loss scale only where the checkpoint does not restore it, and the engine has none of its own
        replace(_set(OPTIONS[name], value), at="once" if name == "loss_scale" else "standing")
        for name, value in wanted.numbers.items()
    ]
    if wanted.peak_lr is None and wanted.lr_warmup is None and wanted.seqlen_warmup is None:
        if "weight_decay" in wanted.numbers and facts.lr_scheduler != "lr-scheduler":  # the newer ones schedule it
            plain += _override(facts, by_tokens=False)
        return tuple(plain)
    needed = {
        "--lr": facts.lr,
        "--seq-length": facts.seq_length,
        "--global-batch-size": facts.global_batch_size,
        "--train-samples or --train-iters": facts.train_samples or facts.train_iters,
    }
    if missing := [name for name, value in needed.items() if value is None]:
        raise ConfigError(f"the job script does not show {', '.join(missing)}: what follows from it can't be changed")
    return (*_schedules(wanted, facts), *plain)


def changes_at(marked: Sequence[Marked], start: Literal["first", "later"]) -> tuple[Change, ...]:
    """The changes of the run's original script for the start at the anchor, or for the follow-ups after its first save.

    A follow-up must not be used before that save: it would bring the old schedule back from the anchor's checkpoint.
    """
    left_out = "afterwards" if start == "first" else "once"
    return tuple(each.change for each in marked if each.at != left_out)


def _schedules(wanted: Wanted, facts: ScriptFacts) -> Iterator[Marked]:
    slw = wanted.seqlen_warmup
    if wanted.peak_lr is not None:
        yield _set("--lr", wanted.peak_lr)
        if facts.min_lr and facts.lr:  # as LrSchedule.with_peak; Megatron refuses a peak below it
            yield _set("--min-lr", min(facts.min_lr * (wanted.peak_lr / facts.lr), wanted.peak_lr))
    if slw is not None:
        yield from _seqlen_warmup(slw, facts)
    if wanted.lr_warmup is not None:
        yield from _lr_warmup(wanted.lr_warmup.warmup, wanted.lr_warmup.unit, facts, by_tokens=slw is not None)
    elif slw is not None and slw.warmup_end_tokens is not None and facts.lr_scheduler != "lr-scheduler":
        yield from _lr_warmup(slw.warmup_end_tokens, "tokens", facts, by_tokens=True)
    elif slw is not None and facts.lr_warmup_fraction:  # it would be a share of the run's new length
        unit, warmup = _warmup(facts)
        yield from _lr_warmup(warmup or 0, unit, facts, by_tokens=True)
    yield from _override(facts, by_tokens=slw is not None)


def _seqlen_warmup(slw: SeqlenWarmup, facts: ScriptFacts) -> Iterator[Marked]:
    start, full = slw.schedule.start, slw.schedule.full
    if full != facts.seq_length:
        raise ConfigError(f"SLW ends at {full} tokens per sample, and --seq-length is {facts.seq_length}")
    if start % 8 or full % 8:
        raise ConfigError(f"sequence lengths should be multiples of 8, not {start} and {full}")
    name, batch = _suffix(facts), facts.global_batch_size or 1
    # Samples or iterations that do not end the run before its tokens: three times those of the full length.
    each = full * (batch if name == "iters" else 1)
    most = max(_counted(facts, "train") or 0, 3 * -(-slw.train_tokens // each))
    yield Marked(change=SetJson(path=("curriculum_learning",), value=discrete_curriculum(slw.schedule)))
    yield Marked(change=RemoveOption(flag="--rampup-batch-size", values=3))
    yield _set("--train-tokens", slw.train_tokens)
    yield _set(f"--train-{name}", most)
    yield _set("--lr-decay-tokens", slw.decay_tokens)
    yield Marked(change=RemoveOption(flag=f"--lr-decay-{name}", values=1))


def _lr_warmup(length: int, unit: str, facts: ScriptFacts, *, by_tokens: bool) -> Iterator[Marked]:
    names = {"steps": "--lr-warmup-iters", "samples": "--lr-warmup-samples", "tokens": "--lr-warmup-tokens"}
    train, decay = _counted(facts, "train"), _counted(facts, "lr_decay")
    end = (train if decay is None or by_tokens else decay) or 0
    if unit == run_unit(facts) and length >= end:
        counted = "iterations" if unit == "steps" else "samples"
        raise ConfigError(f"an LR warmup of {length} {counted} would not end before the decay, {end}")
    for other, flag in names.items():
        if other != unit and not (other == "tokens" and facts.lr_scheduler == "lr-scheduler"):
            yield Marked(change=RemoveOption(flag=flag, values=1))
    yield Marked(change=RemoveOption(flag="--lr-warmup-fraction", values=1))
    yield _set(names[unit], length)


def _override(facts: ScriptFacts, *, by_tokens: bool) -> Iterator[Marked]:
    """The scheduler is told once to take the options and not the checkpoint; the next save holds what it took.

    Where the decay counts tokens and the warmup does not, Microsoft's scheduler writes the end of its warmup into the
    checkpoint and refuses it at the next start for not being an option: from then on the checkpoint has to count.
    """
    if (name := facts.lr_scheduler) is None:
        raise ConfigError(
            "neither the job script nor the trainer's own arguments.py shows how its LR schedule is overridden: set "
            '[launcher] scheduler_override, as "--override-lr-scheduler" or "--override-opt_param-scheduler"'
        )
    yield Marked(change=RemoveOption(flag=f"--use-checkpoint-{name}", values=0), at="once")
    yield Marked(change=SetOption(flag=f"--override-{name}"), at="once")
    if by_tokens and name != "lr-scheduler":
        yield Marked(change=RemoveOption(flag=f"--override-{name}", values=0), at="afterwards")
        yield Marked(change=SetOption(flag=f"--use-checkpoint-{name}"), at="afterwards")


def _set(flag: str, value: float) -> Marked:
    return Marked(change=SetOption(flag=flag, value=exact_number(value)))


def exact_number(value: float) -> str:
    """As short as it can be said exactly; whole numbers without a point, which Megatron's int options refuse."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e16 else repr(value)
