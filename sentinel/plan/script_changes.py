"""A decision as changes of the run's job script, for trainers that take options and do not read overrides.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sentinel.plan.baseline import Baseline
from sentinel.plan.job_script import Rewritten, SetOption, SetVariable, rewrite
from sentinel.plan.job_script.given import given
from sentinel.plan.lint import Facts, lint_before_restart
from sentinel.plan.lint.derived import warmup_steps
from sentinel.plan.lint.reading import read_text
from sentinel.plan.megatron_options import (
    LrWarmup,
    Marked,
    MegatronRun,
    SeqlenWarmup,
    Wanted,
    changes_at,
    megatron_changes,
)
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Overrides, Standing
from sentinel.vocabulary.pacing import LrSchedule

__all__ = ["CARRIED", "NewScripts", "baseline_of_script", "new_scripts"]


_MEGATRONS_WEIGHT_DECAY = 0.01
"""Megatron's own, where the script gives none."""


CARRIED = frozenset(
    {
        "lr",
        "seqlen",
        "shorten",
        "total_tokens",
        "adam_beta1",
        "adam_beta2",
        "weight_decay",
        "clip_grad",
        "seed",
        "loss_scale",
        "free",
    }
)
"""Keys of overrides.json that a job script can carry at all; whether a given script can, `new_scripts` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewScripts:
    """The job script for the start at the anchor, and the one for all later starts: without what is done once."""

    first: Rewritten
    later: Rewritten
    remarks: tuple[str, ...] = ()
    """What lint says of the changed run and did not say of the run as it was; sentences."""


def new_scripts(text: str, overrides: Overrides) -> NewScripts:
    """The scripts that carry a decision out. ScriptRefused names the line; ConfigError says what can't be done so.

    `text` is the run's own script: each decision changes that, not what the last one left. ScriptRefused also where
    lint finds an error that the change brings in.
    """
    read = read_text(text)
    facts = read.facts
    try:
        marked = tuple(_marked(overrides, facts, text))
    except ConfigError as error:  # where something can't be read, that is the better reason
        unread = next((u for u in read.unread if u.line is not None), None)
        if unread is None or isinstance(error, ScriptRefused):
            raise
        raise ScriptRefused(unread.line, f"{unread.what}: {unread.why}") from error
    first, later = rewrite(text, changes_at(marked, "first")), rewrite(text, changes_at(marked, "later"))
    step = overrides.anchor.global_step
    findings = lint_before_restart(facts, read_text(first.text).facts, resume_step=step)
    if (wrong := next((f for f in findings if f.severity == "error"), None)) is not None:
        raise ScriptRefused(None, f"the changed run would be wrong: {wrong.sentence}")
    remarks = tuple(f"{f.severity}: {f.sentence}" for f in findings)
    return NewScripts(first=first, later=later, remarks=remarks)


def baseline_of_script(text: str) -> Baseline:
    """What the script asks for, as far as it can be read; schedules in optimizer steps. ConfigError as read_text."""
    facts = read_text(text).facts
    warmup = warmup_steps(facts)
    lr = None
    if facts.lr is not None and warmup is not None:
        lr = LrSchedule(peak=facts.lr, warmup=round(warmup), decay_end=0, minimum=min(facts.min_lr or 0.0, facts.lr))
    return Baseline(
        seed=_seed(text),
        lr=lr,
        full_seqlen=facts.seq_length,
        adam_beta1=facts.adam_beta1,
        adam_beta2=facts.adam_beta2,
        clip_grad=facts.clip_grad,
        precision=facts.precision,
    )


def _seed(text: str) -> int | None:
    seed = _last(text, "--seed", None)
    return None if seed is None else int(seed)


def _last(text: str, flag: str, otherwise: float | None) -> float | None:
    """The option's last value, which argparse goes by; None where it can't be read."""
    found = [option for option in given(text).options if option.flag == flag]
    if not found:
        return otherwise
    try:
        return None if found[-1].unread else float(found[-1].values[0].replace("_", ""))
    except (ValueError, IndexError):
        return None


def _unless(wanted: float | None, script: float | None) -> float | None:
    """What has to be written; None for what the script says already: what is in force goes into every decision."""
    return None if wanted == script else wanted


def _only_by_overrides(standing: Standing, anchor: Anchor) -> Iterator[str]:
    """What begins at the anchor and no job script can begin there, in words.

    What the run had before is in every decision as well; it is the script's own, and stays as it is.
    """
    seqlen, batch, ltd, curriculum = standing.seqlen, standing.batch_size, standing.random_ltd, standing.curriculum
    shortens = seqlen is not None and seqlen.warms_up and seqlen.anchor_step == anchor.global_step
    if shortens and standing.shorten not in (None, "truncate"):
        yield f"shortening batches by {standing.shorten}"
    if batch is not None and batch.warms_up and batch.anchor_samples == anchor.consumed_samples:
        yield "a batch-size warmup that begins at the target"
    if ltd is not None and ltd.drops and ltd.anchor_step == anchor.global_step:
        yield "random-LTD that begins at the target"
    paced = curriculum.metrics.values() if curriculum is not None else ()
    if any(metric.difficulty.anchor_step == anchor.global_step for metric in paced):
        yield "a curriculum that begins at the target"


def _marked(overrides: Overrides, facts: Facts, text: str) -> Iterator[Marked]:
    standing, once = overrides.standing, overrides.once
    for key in ("skip_samples", "reset_moments"):
        if once is not None and getattr(once, key):
            raise ConfigError(f"{key} can't be done by a job script: only a trainer that reads overrides.json does it")
    if standing.skipped:
        raise ConfigError("what was skipped of the data can't be kept out by a job script")
    for what in _only_by_overrides(standing, overrides.anchor):
        raise ConfigError(f"{what} can't be done by a job script: only a trainer that reads overrides.json does it")
    wanted = Wanted(
        seed=once.seed if once else None,
        initial_loss_scale=once.loss_scale if once else None,
        peak_lr=standing.lr.peak if standing.lr and standing.lr.peak != facts.lr else None,
        lr_warmup=_lr_warmup(standing, facts, overrides.anchor.global_step),
        seqlen_warmup=_seqlen_warmup(standing, facts),
        adam_beta2=_unless(standing.adam_beta2, facts.adam_beta2),
        clip_grad=_unless(standing.clip_grad, facts.clip_grad),
    )
    if wanted != Wanted():
        yield from megatron_changes(wanted, _megatron_run(facts, text), overrides.anchor)
    plain = {
        "--adam-beta1": _unless(standing.adam_beta1, facts.adam_beta1),
        "--weight-decay": _unless(standing.weight_decay, _last(text, "--weight-decay", _MEGATRONS_WEIGHT_DECAY)),
    }
    for flag, number in plain.items():
        if number is not None:
            yield Marked(change=SetOption(flag=flag, value=repr(number)))
    for option in standing.free.options if standing.free else ():
        flag, _, value = option.partition("=")
        yield Marked(change=SetOption(flag=flag, value=value))
    for name, value in (standing.free.environment if standing.free else {}).items():
        yield Marked(change=SetVariable(name=name, value=value))


def _lr_warmup(standing: Standing, facts: Facts, step: int) -> LrWarmup | None:
    """A longer warmup, as Megatron has it: counted from the run's beginning, so that the LR at the anchor falls."""
    lr, warmup = standing.lr, warmup_steps(facts)
    if lr is None or not _is_another_warmup(lr, warmup):
        return None
    if step >= lr.warmup:
        raise ConfigError(
            f"Megatron counts the LR warmup from the run's beginning: one of {lr.warmup} steps is over at step {step}"
        )
    return LrWarmup(anchor_lr=lr.peak * max(step, 1) / lr.warmup)


def _is_another_warmup(lr: LrSchedule, of_script: float | None) -> bool:
    """Whether the schedule's warmup is not the script's own, which in steps is only known to a step or two."""
    return lr.anchor > 0 or of_script is None or abs(lr.warmup - of_script) > max(2.0, 0.02 * of_script)


def _seqlen_warmup(standing: Standing, facts: Facts) -> SeqlenWarmup | None:
    seqlen = standing.seqlen
    if seqlen is None:
        return None
    warmup = warmup_steps(facts)
    if warmup is None or facts.global_batch_size is None or facts.seq_length is None:
        raise ConfigError("SLW re-sizes the LR warmup, and the script does not show how long it is in tokens")
    tokens = round(warmup * facts.global_batch_size * facts.seq_length)
    by_anchor = standing.lr is not None and _is_another_warmup(standing.lr, warmup)
    return SeqlenWarmup(schedule=seqlen, lr_warmup_tokens=None if by_anchor else tokens)


def _megatron_run(facts: Facts, text: str) -> MegatronRun:
    unit: Literal["iterations", "samples"] = "iterations" if facts.train_samples is None else "samples"
    train = facts.train_iters if facts.train_samples is None else facts.train_samples
    needed = {
        "--lr": facts.lr,
        "--seq-length": facts.seq_length,
        "--global-batch-size": facts.global_batch_size,
        "--train-samples or --train-iters": train,
    }
    if missing := [name for name, value in needed.items() if value is None]:
        raise ConfigError(f"the job script does not show {', '.join(missing)}: what follows from it can't be changed")
    return MegatronRun(
        peak_lr=facts.lr or 0.0,
        min_lr=facts.min_lr or 0.0,
        full_seqlen=facts.seq_length or 0,
        global_batch_samples=facts.global_batch_size or 0,
        unit=unit,
        train=train or 0,
        decay=facts.lr_decay_iters if unit == "iterations" else facts.lr_decay_samples,
        scheduler="newer" if "opt_param-scheduler" in text or facts.lr_warmup_tokens is not None else "older",
        lr_warmup_tokens=facts.lr_warmup_tokens is not None,
    )
