"""What a run trains with: reported by an attempt, changed by a rung and by overrides.json, compared by a proof."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

from sentinel.vocabulary.codec import Described, fields_of
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import AT_LEAST_0, POSITIVE, SHARE, SIXTY_FOUR_BITS
from sentinel.vocabulary.pacing import (
    BatchSizeSchedule,
    CurriculumSchedule,
    LrSchedule,
    RandomLtdSchedule,
    SeqlenSchedule,
    Shortening,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRange(Described):
    """The samples at the positions from `begin` up to, not including, `end` of the order that held when it was made. A
    later reseed, or a rollback, changes which samples stand there: meant are those of the order that `reseeds`
    gives."""

    begin: int  # Position in the run's data order: consumed_samples before the first sample that is left out
    end: int  # Position after the last one
    # (position, seed) pairs that make the order; () for a trainer whose order never changes.
    reseeds: tuple[tuple[int, Annotated[int, SIXTY_FOUR_BITS]], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ConfigError(f"a skipped range should begin at 0 or later and hold a sample: {self.begin}-{self.end}")


Proof = Literal["number", "exact", "schedule"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How a field of the training settings is called, reported, proved and encoded."""

    words: str  # What a person calls it
    reported_as: str = ""  # The field of `run_started`, where it has another name
    # How a restart's value is compared with what the attempt shows. number: to 1 part in 10^9, by what was measured;
    # exact: the same JSON; schedule: the same JSON, and its values at the steps that were made; None: not by itself.
    proof: Proof | None = None
    _: KW_ONLY
    standing: bool = False  # Whether `standing` of overrides.json can change it
    restored: bool = False  # Whether loading a checkpoint brings an older value back, whatever was passed
    option: str = ""  # Megatron's option for it, where its value can be written as it is
    default: float | None = None  # Megatron's own value, where its job script gives none


def _standing(words: str, reported_as: str, proof: Proof | None = None, *, restored: bool = False) -> Setting:
    return Setting(words, reported_as, proof, standing=True, restored=restored)


def _number(words: str, option: str, default: float, *, reported_as: str = "") -> Setting:
    return Setting(words, reported_as, "number", standing=True, restored=True, option=option, default=default)


LrFactors = Mapping[str, Annotated[float, POSITIVE]]

LR_ROLES = frozenset(("attention.qk", "attention.qkv"))
"""What `lr_factor_of` can name beside patterns of parameters' names: the weights and biases of queries and keys, and of
values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Numbers of Adam that are reported, changed by a rung and decided under the same name. None is not reported, or
    left as it is."""

    adam_beta1: Annotated[float | None, SHARE, _number("Adam's beta1", "--adam-beta1", 0.9)] = None
    """Decay of Adam's first moment, dimensionless, for all parameters."""

    adam_beta2: Annotated[float | None, SHARE, _number("Adam's beta2", "--adam-beta2", 0.999)] = None
    """Decay of Adam's second moment, dimensionless, for all parameters, e.g. 0.95 for 0.999."""

    adam_eps: Annotated[float | None, POSITIVE, _number("Adam's epsilon", "--adam-eps", 1e-8)] = None
    """Adam's epsilon, which is added to sqrt(v), for all parameters; in the units of the gradient, e.g. 1e-8."""

    weight_decay: Annotated[float | None, AT_LEAST_0, _number("weight decay", "--weight-decay", 0.01)] = None
    """Weight decay of the parameters that are decayed at all, the largest of the optimizer's groups; those at 0 stay
    there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSettings(OptimizerSettings):
    """What `run_started` reports under the same name as it is known here."""

    seed: Annotated[int | None, SIXTY_FOUR_BITS, Setting("seed")] = None  # The seed that orders the data
    full_seqlen: int | None = None  # Full sequence length, tokens per sample: what a validation loss is measured at
    total_steps: int | None = None  # The step at which the run ends by itself
    # The effective tokens at which the run ends by itself; where steps are given too, at the first of both.
    total_tokens: Annotated[int | None, Setting("end by tokens", standing=True)] = None
    precision: str | None = None  # What the model computes in: fp32, bf16 or fp16
    dropout: float | None = None  # Largest dropout probability in the model
    decoupled_weight_decay: bool | None = None  # Whether the decay is apart from the gradient, as AdamW's is
    parameters: float | None = None  # Parameters of the whole model
    # Limit of the attention logits: above it a head's query and key weights are scaled down. 0 does not clip.
    qk_clip: Annotated[float | None, AT_LEAST_0, Setting("QK-clip", proof="number", standing=True)] = None
    # Role or pattern of parameters' names -> LR as a multiple of that of the rest. Empty: none differs.
    lr_factor_of: Annotated[LrFactors | None, _standing("LR factors", "", "exact")] = None
    # fp16: the loss scale that the first step is taken with.
    loss_scale: Annotated[float | None, Setting("loss scale", restored=True)] = None
    moments_reset_steps: tuple[int, ...] | None = None  # After which Adam's moments and step count were set to 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Free(Described):
    """Changes that sentinel has no word for: the trainer gets them as they are, and echoes those that it has made."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of environment variables."""

    options: tuple[str, ...] = ()
    """Options of the trainer's command line, each with its value, `--flag=value`; a switch is `--flag`."""

    removed: tuple[str, ...] = ()
    """Options that the trainer no longer gets, each as `--flag`; left out of JSON where there are none."""

    def to_json(self) -> dict[str, Any]:
        found = fields_of(self)
        return found if self.removed else {key: found[key] for key in ("environment", "options")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings(SharedSettings):
    """What a run trains with, or a change of it. None: not reported, or left as it is."""

    lr: Annotated[LrSchedule | None, _standing("LR schedule", "lr_schedule", "schedule", restored=True)] = None
    # Of any pacing; one that does not warm up where SLW is off.
    seqlen: Annotated[SeqlenSchedule | None, _standing("sequence length", "seqlen_schedule", "schedule")] = None
    # How a batch gets shorter while the sequence length warms up.
    shorten: Annotated[Shortening | None, _standing("batch shortening", "seqlen_shortening", "exact")] = None
    batch_size: Annotated[BatchSizeSchedule | None, _standing("global batch", "batch_size_schedule", "exact")] = None
    random_ltd: Annotated[RandomLtdSchedule | None, _standing("random-LTD", "random_ltd_schedule", "exact")] = None
    # The metrics that pace the data; one without metrics ends it, or says that nothing paces the data.
    curriculum: Annotated[CurriculumSchedule | None, _standing("curriculum", "curriculum_schedule", "exact")] = None
    # Largest global L2 norm of the gradient; above it, it is scaled down. 0 does not clip.
    clip_grad: Annotated[
        float | None, AT_LEAST_0, _number("gradient clipping", "--clip-grad", 1.0, reported_as="gradient_clipping")
    ] = None
    total_samples: int | None = None  # Samples at which the run ends by itself
    # Samples that were left out of the data; they stay out, also when the run is rolled back to before them.
    skipped: Annotated[tuple[SkippedRange, ...] | None, _standing("ranges skipped earlier", "skipped_ranges")] = None
    free: Annotated[Free | None, Setting("free-form changes", standing=True)] = None


@lru_cache(maxsize=8)
def settings_of(cls: Any = TrainingSettings) -> Mapping[str, Setting]:
    """Field name -> how it is called, reported and compared, of the fields that say so."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: x for f in fields(cls) for x in get_args(hints[f.name])[1:] if isinstance(x, Setting)}


def difference(before: TrainingSettings, after: TrainingSettings) -> tuple[str, ...]:
    """The settings that overrides.json can change and that differ, by their names; None in `after` changes nothing."""
    standing = (name for name, setting in settings_of().items() if setting.standing)
    return tuple(name for name in standing if getattr(after, name) not in (None, getattr(before, name)))


# setting -> names of it in the command lines of Megatron-LM, Megatron-DeepSpeed, Hugging Face's TrainingArguments,
# nanoGPT, Lightning, torchtitan and the reference trainer: in lower case, with hyphens, without the leading ones
_NAMES = {
    "lr": "lr learning-rate max-lr peak-lr base-lr lr-max",
    "min_lr": "min-lr lr-min learning-rate-min",
    "lr_warmup_steps": "lr-warmup-iters lr-warmup-steps lr-warmup warmup-iters warmup-steps num-warmup-steps "
    "warmup-num-steps",
    "clip_grad": "clip-grad max-grad-norm gradient-clipping gradient-clip-val grad-clip clip-grad-norm grad-norm-clip",
    "seed": "seed data-seed",
    "adam_beta1": "adam-beta1 beta1",
    "adam_beta2": "adam-beta2 beta2",
    "adam_eps": "adam-eps adam-epsilon eps",
    "weight_decay": "weight-decay wd",
    "loss_scale": "initial-loss-scale init-loss-scale loss-scale",
    "seqlen": "seq-length seqlen seq-len max-seq-length max-seq-len block-size",
    "global_batch": "global-batch-size global-batch total-batch-size",
    "micro_batch": "micro-batch-size micro-batch per-device-train-batch-size",
    "total_steps": "train-iters max-steps train-steps steps",
}
_SETTINGS = {name: setting for setting, names in _NAMES.items() for name in names.split()}


def setting_of(flag: str) -> str | None:
    """The setting that the option or argument names: `--learning_rate` and `lr` are "lr"; None for any other."""
    return _SETTINGS.get(flag.lstrip("-").lower().replace("_", "-"))


def named_settings(options: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """(setting, flag, value) of each option `--flag=value` that names a known setting."""
    for option in options:
        flag, _, value = option.partition("=")
        if (setting := setting_of(flag)) is not None:
            yield setting, flag, value


def wanted_number(value: str) -> float | None:
    """The option's value as a number; None for one that is not (a shell variable, a word)."""
    try:
        return float(value.strip("'\"").replace("_", ""))
    except ValueError:
        return None


def argument(setting: str, arguments: Mapping[str, Any]) -> float | None:
    """The setting's value among a trainer's arguments, by any of its names; None where none of them is a number."""
    numbers = (wanted_number(str(value)) for name, value in arguments.items() if setting_of(name) == setting)
    return next((number for number in numbers if number is not None), None)
