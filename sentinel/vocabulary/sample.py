"""The metrics journal's grammar: one JSON object per line, each with a `kind`.

A line is read leniently towards what is newer (unknown kinds are None, unknown keys are passed over) and strictly
towards what is known: a key of the wrong type is a LineError that names it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import dump_json, load_object, to_number

__all__ = ["CheckpointSaved", "Record", "RunFinished", "RunStarted", "Sample", "Validation", "decode", "encode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One optimizer step, as the trainer reported it. None is "not measured"; nan is "measured, and that bad"."""

    attempt: int
    """The life of the training process group that took this step; 1 is the first."""

    global_step: int
    """Completed optimizer updates, this one included (DeepSpeed's counter)."""

    time_unix_s: float
    """When the step ended, on rank 0's clock; nan where the source has no clock (a log without time stamps)."""

    loss: float
    """Training loss in nats: mean over tokens, micro-batches and data-parallel ranks. May be nan or inf."""

    loss_ratio: float | None = None
    """loss / the smallest loss of all previous steps at this seqlen; 1.0 at the first, inf when loss is not finite."""

    adam_variance_l1: float | None = None
    """Sum over all parameters of sqrt(v), v = Adam's exp_avg_sq, each parameter once. nan when any v is nan."""

    adam_variance_max: float | None = None
    """max over all parameters of sqrt(v); MAX over every rank. nan when any v is nan."""

    grad_norm: float | None = None
    """Global L2 norm of the gradient before clipping. nan or inf when the gradient is."""

    update_norm: float | None = None
    """Root mean square over all parameters of the change that this update made, before it is scaled by lr."""

    loss_spread: float | None = None
    """Largest minus smallest loss over the ranks that reported this step, nats; None where only one did."""

    loss_scale: float | None = None
    """The loss scale of fp16 training; None where there is none."""

    lr: float | None = None
    """Learning rate that this step was taken with."""

    seqlen: int | None = None
    """Tokens per sample in this step; below the full length while it warms up."""

    lr_warmup_steps: int | None = None
    """Length of the LR warmup that is in force, in steps from its anchor."""

    skipped: bool = False
    """True when the optimizer skipped the update (overflow): the weights are as they were."""

    step_time_s: float | None = None
    """Wall time since the previous step ended; None at an attempt's first step."""

    global_batch_samples: int | None = None
    """Samples in this step, over all ranks and micro-batches."""

    consumed_samples: int | None = None
    """Where the data order stands: samples consumed by the run, this step and the skipped ones included."""

    consumed_tokens: int | None = None
    """Tokens consumed by the run, this step included. Counted, not global_step * seqlen: seqlen warms up."""

    epoch: float | None = None
    """Passes over the data so far, fractions included, as the trainer counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """What an attempt really runs with: the daemon's proof that a restart did what it was meant to."""

    attempt: int
    time_unix_s: float
    run: str | None = None
    """The name of the run, where the trainer knows it."""

    hook_version: str | None = None
    """Version of the distribution that the hook came from."""

    host: str | None = None
    pid: int | None = None
    """Process id of rank 0 on `host`."""

    process_start_unix_s: float | None = None
    """When that process was started: with the pid it names the process for good."""

    job_id: str | None = None
    """The scheduler's id of the job, or None; Slurm's as squeue shows it: `4711`, or `7_2` for a task of an array."""

    restart_count: int | None = None
    """How often the scheduler has requeued this job."""

    parent_attempt: int | None = None
    """The attempt whose checkpoint this one continues, or None."""

    resumed_from: int | None = None
    """global_step of the checkpoint that was loaded; None when training starts from scratch."""

    incident: str | None = None
    """The incident whose overrides are in force, or None."""

    rollback: str | None = None
    """Which restart of that incident: the `rollback` of overrides.json, or None."""

    applied_once: tuple[str, ...] = ()
    """Ids of the one-shot overrides that the run has had so far, this start's included."""

    seed: int | None = None
    """The seed that orders the data from here on."""

    first_sample_index: int | None = None
    """Position in the data order of the first sample that will be trained on: consumed_samples before the first step,
    and past what is skipped there."""

    skipped_samples: int | None = None
    """Samples that mitigations have left out of the data so far, over the run's life, each once."""

    skipped_ranges: tuple[dict[str, Any], ...] | None = None
    """Which ones: SkippedRanges, as to_json gives them; kept in the checkpoint's client state."""

    consumed_tokens: int | None = None
    """consumed_tokens before the first step."""

    lr: float | None = None
    """Learning rate that the first step will be taken with."""

    lr_schedule: dict[str, Any] | None = None
    """The LrSchedule in force, as its to_json gives it."""

    seqlen: int | None = None
    """Tokens per sample of the first step."""

    seqlen_schedule: dict[str, Any] | None = None
    """The SeqlenSchedule in force, as its to_json gives it."""

    full_seqlen: int | None = None
    """The length that a validation loss is measured at."""

    adam_beta1: float | None = None
    """Decay of Adam's first moment, dimensionless, as the optimizer holds it (its first group's)."""

    adam_beta2: float | None = None
    """Decay of Adam's second moment, dimensionless, as the optimizer holds it (its first group's)."""

    weight_decay: float | None = None
    """The largest of the optimizer's groups: the others are as a rule not decayed at all."""

    gradient_clipping: float | None = None
    """Largest global L2 norm of the gradient, as the engine holds it; 0 does not clip."""

    precision: str | None = None
    """What the model computes in: fp32, bf16 or fp16."""

    loss_scale: float | None = None
    """fp16: the loss scale that the first step will be taken with; None where there is none."""

    moments_reset_steps: tuple[int, ...] | None = None
    """The steps after which Adam's moments and step count were set to 0, over the run's life."""

    free: dict[str, Any] | None = None
    """The free-form changes that the trainer has made, as overrides.json gave them."""

    total_steps: int | None = None
    """The step at which the run ends by itself, or None."""

    checkpoint_interval_steps: int | None = None
    world_size: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """Whatever else the trainer wants on the record (its arguments, versions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """A validation loss at full length, mean over tokens, nats."""

    attempt: int
    global_step: int
    time_unix_s: float
    loss: float
    seqlen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint that the trainer has finished writing."""

    attempt: int
    global_step: int
    time_unix_s: float
    tag: str
    consumed_samples: int | None = None
    consumed_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The attempt ended by itself or was asked to: `reason` is finished, sigterm, kill_file or error: …"""

    attempt: int
    global_step: int
    time_unix_s: float
    reason: str


Record = Sample | RunStarted | Validation | CheckpointSaved | RunFinished
T = TypeVar("T", bound=Record)

_KINDS: dict[str, type[Record]] = {
    "sample": Sample,
    "run_started": RunStarted,
    "validation": Validation,
    "checkpoint_saved": CheckpointSaved,
    "run_finished": RunFinished,
}
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


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
    values = {}
    for name, (annotation, required) in _GRAMMAR[cls].items():
        if name in data:
            values[name] = _read(annotation, data[name], name)
        elif required:
            raise LineError(f"a {kind} line needs {name}")
    return cls(**values)


def _read(annotation: str, value: Any, key: str) -> Any:
    optional = annotation.endswith(" | None")
    wanted = annotation.removesuffix(" | None")
    if value is None:
        if optional:
            return None
        raise LineError(f"{key} may not be null")
    if wanted == "float":
        return to_number(value, key)
    if wanted == "int":
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise LineError(f"{key} should be a whole number, not {value!r}")
    if wanted.startswith("tuple"):
        item = wanted.removeprefix("tuple[").removesuffix(", ...]")
        if not isinstance(value, list):
            raise LineError(f"{key} should be a list, not {value!r}")
        return tuple(_read(item, element, key) for element in value)
    kinds = {"str": str, "bool": bool, "dict[str, Any]": dict}
    if isinstance(value, kinds[wanted]):
        return value
    raise LineError(f"{key} should be a {kinds[wanted].__name__}, not {value!r}")


_GRAMMAR: dict[type[Record], dict[str, tuple[str, bool]]] = {
    # (annotation, required): annotations are strings, as `from __future__ import annotations` leaves them
    cls: {f.name: (str(f.type), f.default is MISSING and f.default_factory is MISSING) for f in fields(cls)}
    for cls in _NAMES
}
