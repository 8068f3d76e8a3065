"""A decision as changes of the run's job script, for trainers that take options and do not read overrides.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sentinel.jobscript import RemoveOption, SetJson, SetOption, SetVariable
from sentinel.jobscript import huggingface_options as huggingface
from sentinel.jobscript.derived import batch_schedule, curriculum_schedule, scale
from sentinel.jobscript.facts import LrScheduler, ScriptFacts
from sentinel.jobscript.given import given
from sentinel.jobscript.megatron_options import (
    OPTIONS,
    Marked,
    SeqlenWarmup,
    Wanted,
    decay_tokens,
    lr_schedule,
    megatron_changes,
    warmup_end_tokens,
)
from sentinel.jobscript.reading import Read, read_text
from sentinel.plan.incident.baseline import Baseline, filled, lr_warmup_steps
from sentinel.vocabulary.errors import ConfigError, ScriptRefused
from sentinel.vocabulary.overrides import Anchor, Overrides
from sentinel.vocabulary.pacing import LrSchedule
from sentinel.vocabulary.training_settings import Free, TrainingSettings, difference, settings_of, wanted_number

_OVERRIDES_ONLY = "can't be done by a job script: only a trainer that reads overrides.json does it"
# Keys of overrides.json that a job script can carry at all; whether a given script can, `changes_of` says.
CARRIED = frozenset({"lr", "seqlen", "shorten", "batch_size", "total_tokens", "free", *OPTIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSettings:
    """What is known of a run beside its own script."""

    scheduler: LrScheduler | None = None  # The trainer's; None: as the script's options tell
    reported: Baseline | None = None  # What an attempt with the unchanged script ran with, for what the script hides


THE_SCRIPT_ALONE = KnownSettings()


def changes_of(text: str, overrides: Overrides, known: KnownSettings = THE_SCRIPT_ALONE) -> tuple[Marked, ...]:
    """What has to change in the run's own script, marked with the starts that it is for.

    ScriptRefused names the line that can't be read; ConfigError says what a job script can't do.
    """
    found = read_text(text)
    facts = found.facts if known.scheduler is None else replace(found.facts, lr_scheduler=known.scheduler)
    try:
        return tuple(_marked(overrides, replace(found, facts=facts), text, known.reported))
    except ConfigError as error:  # where something can't be read, that is the better reason
        unread = next((u for u in found.unread if u.line is not None), None)
        if unread is None or isinstance(error, ScriptRefused):
            raise
        raise ScriptRefused(unread.line, f"{unread.what}: {unread.why}") from error


def baseline_of_script(text: str, found: Read | None = None) -> Baseline:
    """What the script asks for, as far as it can be read, in the units that it counts in. ConfigError as read_text."""
    found = found or read_text(text)
    facts, seed = found.facts, (_word(text, "--seed") or "").replace("_", "")
    lr = lr_schedule(facts, style=_word(text, "--lr-decay-style") or "linear")
    number = int(seed) if re.fullmatch(r"[-+]?\d+", seed) else None
    if found.family == "huggingface":
        own = given(text)
        number, lr = huggingface.seed_of(own), huggingface.lr_schedule(facts, style=huggingface.scheduler_type(own))
    return Baseline(
        seed=number,
        lr=lr,
        lr_from_start=True,
        seqlen=curriculum_schedule(facts),
        full_seqlen=facts.seq_length,
        batch_size=batch_schedule(facts),
        total_steps=facts.train_iters or None,
        total_samples=facts.train_samples,
        total_tokens=facts.train_tokens,
        parameters=scale(facts),
        precision=facts.precision,
        **{name: getattr(facts, name) for name, setting in settings_of().items() if setting.option}
        | ({} if found.family == "huggingface" else {"clip_grad": _clip_grad(facts, text)}),
    )


def _word(text: str, flag: str) -> str | None:
    """The option's last value as it stands, which argparse goes by; None where it has none that can be read."""
    found = given(text).option(flag)
    return None if found is None else found.value


def _only_by_overrides(standing: TrainingSettings, own: Baseline, anchor: Anchor) -> Iterator[str]:
    """What begins at the anchor and no job script can begin there, in words.

    What the run had before is in every decision as well; it is the script's own, and stays as it is.
    """
    seqlen, batch, ltd, curriculum = standing.seqlen, standing.batch_size, standing.random_ltd, standing.curriculum
    shortens = seqlen is not None and seqlen.warms_up and seqlen.anchor_step == anchor.global_step
    if shortens and standing.shorten not in (None, "truncate"):
        yield f"shortening batches by {standing.shorten}"
    begun_here = batch is not None and batch.anchor_samples == anchor.consumed_samples
    if batch is not None and batch.warms_up and begun_here and batch != own.batch_size:
        yield "a batch-size warmup that begins at the target"
    if ltd is not None and ltd.drops and ltd.anchor_step == anchor.global_step:
        yield "random-LTD that begins at the target"
    paced = curriculum.metrics.values() if curriculum is not None else ()
    if any(metric.difficulty.anchor_step == anchor.global_step for metric in paced):
        yield "a curriculum that begins at the target"


def _marked(overrides: Overrides, found: Read, text: str, reported: Baseline | None) -> Iterator[Marked]:
    facts, by_huggingface = found.facts, found.family == "huggingface"
    standing, once = overrides.standing, overrides.once
    for key in ("skip_samples", "reset_moments"):
        if once is not None and getattr(once, key):
            raise ConfigError(f"{key} {_OVERRIDES_ONLY}")
    if standing.skipped:
        raise ConfigError("what was skipped of the data can't be kept out by a job script")
    own = filled(baseline_of_script(text, found), reported)
    for what in _only_by_overrides(standing, own, overrides.anchor):
        raise ConfigError(f"{what} {_OVERRIDES_ONLY}")
    seqlen = standing.seqlen if standing.seqlen != own.seqlen else None
    if by_huggingface and seqlen is not None and seqlen.warms_up:
        raise ConfigError(f"the sequence length {_OVERRIDES_ONLY}")
    shortens = not by_huggingface and seqlen is not None and (seqlen.warms_up or own.seqlen is not None)
    once_numbers = {name: value for name in OPTIONS if (value := getattr(once, name, None)) is not None}
    changed = {name: getattr(standing, name) for name in difference(own, standing) if name in OPTIONS}
    wanted = Wanted(
        numbers=once_numbers | changed,
        peak_lr=standing.lr.peak if standing.lr and (own.lr is None or standing.lr.peak != own.lr.peak) else None,
        lr_warmup=_lr_warmup(standing.lr, own),
        seqlen_warmup=_seqlen_warmup(standing, own, facts) if shortens else None,
    )
    if by_huggingface:
        yield from huggingface.huggingface_changes(wanted, given(text), anchor=overrides.anchor.global_step)
    else:
        if overrides.anchor.global_step > 0 and (kept := _from_the_checkpoint(wanted, facts, text)):
            where = "from the checkpoint: only a trainer that reads overrides.json changes that"
            raise ConfigError(f"on a resume DeepSpeed takes {', '.join(kept)} {where}")
        yield from megatron_changes(wanted, facts)
    yield from _free_form(standing.free or Free(), facts)
    if _by_deepspeed(text) and not by_huggingface:
        yield from _of_its_json(wanted, standing.free or Free())


def _free_form(free: Free, facts: ScriptFacts) -> Iterator[Marked]:
    """Options and variables as they are; a precision is switched in the script's DeepSpeed JSON, too."""
    for flag in free.removed:
        yield Marked(change=RemoveOption(flag=flag))
    for option in free.options:
        flag, equals, value = option.partition("=")
        yield Marked(change=SetOption(flag=flag, value=value if equals else None))
    for name, value in free.environment.items():
        yield Marked(change=SetVariable(name=name, value=value))
    if (json := facts.deepspeed) is not None:
        for precision, has in (("fp16", json.fp16), ("bf16", json.bf16)):
            wanted = {f"--{precision}" in free.options: True, f"--{precision}" in free.removed: False}.get(True)
            if wanted is not None and wanted is not bool(has):
                yield Marked(change=SetJson(path=(precision, "enabled"), value=wanted))


def _from_the_checkpoint(wanted: Wanted, facts: ScriptFacts, text: str) -> list[str]:
    """What a resumed engine takes from its checkpoint, whatever the script says: Adam's own numbers are in the
    optimizer's groups, and ZeRO 1 and 2 save their clipping."""
    if not _by_deepspeed(text) or given(text).option("--no-load-optim") is not None:
        return []
    stage = facts.deepspeed.zero_stage if facts.deepspeed is not None else None
    clipping = ("clip_grad",) if stage in (1, 2) else ()
    return [OPTIONS[name] for name in ("adam_beta1", "adam_beta2", "adam_eps", *clipping) if name in wanted.numbers]


def _by_deepspeed(text: str) -> bool:
    """Whether the trainer gets --deepspeed, also where the script holds it and hides which options the trainer gets."""
    own = given(text)
    named = re.search(r"--deepspeed(?![\w-])", text) is not None
    return own.option("--deepspeed") is not None or (named and not own.complete)


def _of_its_json(wanted: Wanted, free: Free) -> Iterator[Marked]:
    """DeepSpeed's engine clips by its JSON, and by nothing else."""
    by_option = {flag: value for flag, _, value in (option.partition("=") for option in free.options)}
    clip = wanted.numbers.get("clip_grad", by_option.get(OPTIONS["clip_grad"]))
    if clip is not None and (number := wanted_number(str(clip))) is not None:
        yield Marked(change=SetJson(path=("gradient_clipping",), value=number))


def _clip_grad(facts: ScriptFacts, text: str) -> float | None:
    """What the gradient is clipped to: by the JSON, where the engine is DeepSpeed's and its JSON can be read."""
    if facts.deepspeed is None or not _by_deepspeed(text):
        return facts.clip_grad
    return facts.deepspeed.gradient_clipping or 0.0


def _lr_warmup(lr: LrSchedule | None, own: Baseline) -> LrSchedule | None:
    """The LR of the decision, for its warmup, where it is not the script's own."""
    if lr is None or _same_warmup(lr, own.lr):
        return None
    if own.lr is None:
        raise ConfigError("the LR warmup can't be changed: the job script does not show the one that it has")
    if lr.anchor != own.lr.anchor:
        at = f"{lr.anchor} {lr.unit}"
        raise ConfigError(f"Megatron counts the LR warmup from the run's beginning, so it can't begin at {at}")
    if lr.unit != own.lr.unit and lr.unit == "steps" and (known := lr_warmup_steps(own)) is not None:
        if abs(lr.warmup - known[1]) <= max(2, 0.02 * known[1]):  # decided by a version that counted steps alone
            return None
        raise ConfigError(f"the LR warmup of the decision counts steps, and that of the job script {own.lr.unit}")
    return lr


def _same_warmup(lr: LrSchedule, own: LrSchedule | None) -> bool:
    return own is not None and (lr.unit, lr.warmup, lr.anchor) == (own.unit, own.warmup, own.anchor)


def _seqlen_warmup(standing: TrainingSettings, own: Baseline, facts: ScriptFacts) -> SeqlenWarmup:
    """The numbers of the decision: what it does not say is not worked out here, where nobody would compare it."""
    lr = standing.lr
    by_tokens = lr.decay_end if lr is not None and (lr.decay_unit or lr.unit) == "tokens" else 0
    decay = by_tokens or decay_tokens(facts)
    if standing.seqlen is None or standing.total_tokens is None or decay is None or own.lr is None:
        raise ConfigError(
            "SLW ends the run by tokens and re-sizes its LR warmup, and the decision or the script does not show where"
        )
    return SeqlenWarmup(
        schedule=standing.seqlen,
        train_tokens=standing.total_tokens,
        decay_tokens=decay,
        warmup_end_tokens=warmup_end_tokens(facts, own.lr) if lr is None or _same_warmup(lr, own.lr) else None,
    )
