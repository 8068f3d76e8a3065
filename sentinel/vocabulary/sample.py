"""The metrics journal's grammar: one JSON object per line, each with a `kind`.

A line is read leniently towards what is newer (unknown kinds are None, unknown keys are passed over) and strictly
towards what is known: a key of the wrong type is a LineError that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TypeVar

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json, load_object, seconds_problem, whole_problem
from sentinel.vocabulary.ranges import COUNT, UnixSeconds
from sentinel.vocabulary.run_started import RunStarted

__all__ = [
    "CheckpointSaved",
    "LayerVariance",
    "Record",
    "RunFinished",
    "RunStarted",
    "Sample",
    "Validation",
    "checked",
    "decode",
    "encode",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One optimizer step, as the trainer reported it. None is "not measured"; nan is "measured, and that bad"."""

    attempt: int  # The life of the training process group that took this step; 1 is the first
    global_step: int  # Completed optimizer updates, this one included (DeepSpeed's counter)
    # When the step ended, on rank 0's clock; nan where the source has no clock (a log without time stamps).
    time_unix_s: UnixSeconds
    loss: float  # Training loss in nats: mean over tokens, micro-batches and data-parallel ranks. May be nan or inf.
    # loss / the smallest loss of all previous steps at this seqlen; 1.0 at the first, inf when loss is not finite.
    loss_ratio: float | None = None
    # Sum over all parameters of sqrt(v), v = Adam's exp_avg_sq, each parameter once. nan when any v is nan.
    adam_variance_l1: float | None = None
    # max over all parameters of sqrt(v); MAX over every rank. nan when any v is nan.
    adam_variance_max: float | None = None
    grad_norm: float | None = None  # Global L2 norm of the gradient before clipping. nan or inf when the gradient is.
    # Root mean square over all parameters of the change that this update made, before it is scaled by lr.
    update_norm: float | None = None
    # L2 norm of Adam's first moment (exp_avg), each parameter once. nan when any of it is.
    momentum_l2: float | None = None
    # L2 norm of the parameters that Adam updates (the fp32 ones where there are two kinds), each once.
    param_norm: float | None = None
    # Largest minus smallest loss over the ranks that reported this step, nats; None where only one did.
    loss_spread: float | None = None
    # Largest minus smallest over the data-parallel ranks of the gradient's norm before it is averaged over them: the
    # root mean square over the step's micro-batches of each one's global L2 norm. None where only one rank trains.
    grad_norm_spread: float | None = None
    loss_scale: float | None = None  # The loss scale of fp16 training; None where there is none
    lr: float | None = None  # Learning rate that this step was taken with
    seqlen: int | None = None  # Tokens per sample in this step; below the full length while it warms up
    # Random-LTD: tokens of a sample that each middle layer sees in this step; None where all layers see all.
    kept_tokens: int | None = None
    # Share of the training samples that the curriculum admits to this step, above 0 and at most 1; None is all.
    curriculum_share: float | None = None
    lr_warmup_steps: int | None = None  # Length of the LR warmup that is in force, in steps from its anchor
    skipped: bool = False  # True when the optimizer skipped the update (overflow): the weights are as they were
    step_time_s: float | None = None  # Wall time since the previous step ended; None at an attempt's first step
    # Tokens of this step over step_time_s, all ranks together; None where either is not known.
    tokens_per_s: float | None = None
    global_batch_samples: int | None = None  # Samples in this step, over all ranks and micro-batches
    # Where the data order stands: samples consumed by the run, this step and the skipped ones included.
    consumed_samples: int | None = None
    # Tokens consumed by the run, this step included. Counted, not global_step * seqlen: seqlen warms up.
    consumed_tokens: int | None = None
    epoch: float | None = None  # Passes over the data so far, fractions included, as the trainer counts them


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariance:
    """Adam's variance of each layer after one step: which part of the model moved first."""

    attempt: int
    global_step: int
    time_unix_s: UnixSeconds
    # The embedding, each block by its path in the model, the head; the same ones at every step of an attempt.
    layers: tuple[str, ...]
    # Of each layer: sum over its parameters of sqrt(v). nan when any v of it is nan.
    adam_variance_l1: tuple[float, ...]
    # Of each layer: max over its parameters of sqrt(v). nan when any v of it is nan.
    adam_variance_max: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """A validation loss at full length, mean over tokens, nats."""

    attempt: int
    global_step: int
    time_unix_s: UnixSeconds
    loss: float
    seqlen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint that the trainer has finished writing."""

    attempt: int
    global_step: int
    time_unix_s: UnixSeconds
    tag: str
    consumed_samples: int | None = None
    consumed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The attempt ended by itself or was asked to: `reason` is finished, sigterm, kill_file or error: …"""

    attempt: int
    global_step: int
    time_unix_s: UnixSeconds
    reason: str


Record = Sample | RunStarted | LayerVariance | Validation | CheckpointSaved | RunFinished
T = TypeVar("T", bound=Record)
_KINDS: dict[str, type[Record]] = {
    "sample": Sample,
    "run_started": RunStarted,
    "layer_variance": LayerVariance,
    "validation": Validation,
    "checkpoint_saved": CheckpointSaved,
    "run_finished": RunFinished,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}
_JOURNAL = Form(error=LineError, name="the line", ignores_unknown=True, checks_ranges=False, whole=COUNT)


def encode(record: Record) -> str:
    """The record as one line of JSON, without the newline."""
    return dump_json({"kind": _NAMES[type(record)]} | {f.name: getattr(record, f.name) for f in fields(record)})


def decode(line: str) -> Record | None:
    """The record on one line; None for a kind that this version does not know. LineError says what is wrong."""
    data = load_object(line)
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise LineError("the line has no kind")
    cls = _KINDS.get(kind)
    if cls is None:
        return None
    del data["kind"]
    return read(cls, data, form=_JOURNAL)


def checked(sample: Sample) -> Sample:
    """The sample of a decoder that knows the fields' types and not what they may hold. LineError as of `decode`."""
    if (why := seconds_problem(sample.time_unix_s)) is not None:
        raise LineError(f"time_unix_s {why}")
    for name, count in zip(_COUNTS, _counts_of(sample), strict=True):
        if count is not None and (why := whole_problem(count)) is not None:
            raise LineError(f"{name} {why}")
    return sample


_COUNTS = tuple(f.name for f in fields(Sample) if str(f.type).removesuffix(" | None") == "int")
_counts_of = attrgetter(*_COUNTS)
