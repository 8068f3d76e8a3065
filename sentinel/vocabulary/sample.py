"""The metrics journal's format: one JSON object per line, each with a `kind`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import LineError
from sentinel.vocabulary.numbers import COUNT, UnixSeconds, dump_json, load_object
from sentinel.vocabulary.training_settings import SharedSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStep:
    """What every record of a step begins with."""

    attempt: int  # Which start of the training processes took this step; 1 is the first
    global_step: int  # Completed optimizer updates, this one included (DeepSpeed's counter)
    time_unix_s: UnixSeconds  # When the step ended, on rank 0's clock; nan where the source has no clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(AtStep):
    """One optimizer step, as the trainer reported it. None: not measured. nan: measured, and not a number."""

    loss: float  # Training loss in nats: mean over tokens, micro-batches and data-parallel ranks. May be nan or inf.
    loss_ratio: float | None = None  # loss / the smallest previous loss at this seqlen; 1.0 first, inf if not finite
    # loss / the smallest previous loss at any seqlen, as in Li, Zhang & He 2022; None where there was one length only
    loss_ratio_all_lengths: float | None = None
    adam_variance_l1: float | None = None  # Sum of sqrt(v) over the parameters, each once; v: exp_avg_sq. nan if any is
    adam_variance_max: float | None = None  # max of sqrt(v); MAX over every rank. nan when any v is nan
    # Share of the trainable parameters' elements whose v is known, 0 to 1; below 1 neither v, momentum, update nor
    # parameters have a norm: a part is not the whole. None before the first update, and where it was not looked for.
    adam_variance_coverage: float | None = None
    grad_norm: float | None = None  # Global L2 norm of the gradient before clipping. nan or inf when the gradient is.
    update_norm: float | None = None  # RMS over all parameters of the change of this update, before it is scaled by lr
    momentum_l2: float | None = None  # L2 norm of Adam's first moment (exp_avg). nan when any of it is
    param_norm: float | None = None  # L2 norm of the parameters that Adam updates (fp32 ones), each once
    loss_spread: float | None = None  # Largest minus smallest loss over the ranks, nats; None where only one reports
    # Largest minus smallest over the data-parallel ranks of the gradient's norm before it is averaged over them: the
    # root mean square over the step's micro-batches of each one's global L2 norm. None where only one rank trains.
    grad_norm_spread: float | None = None
    # Largest magnitude of a logit in the step's first micro-batch, over all ranks: of the attention before its softmax
    # (q k / sqrt(d)), of the model's output. inf where one is nan. None between the intervals, and where none is given.
    attention_logit_max: float | None = None
    output_logit_max: float | None = None
    loss_scale: float | None = None  # The loss scale of fp16 training; None where there is none
    lr: float | None = None  # Learning rate that this step was taken with
    seqlen: int | None = None  # Tokens per sample in this step; below the full length while it warms up
    kept_tokens: int | None = None  # Random-LTD: tokens of a sample that a middle layer sees; None where all
    curriculum_share: float | None = None  # Share of the samples that the curriculum admits, in (0, 1]; None is all
    lr_warmup_steps: int | None = None  # Length of the LR warmup that is in force, in steps from its anchor
    skipped: bool = False  # True when the optimizer skipped the update (overflow): the weights are as they were
    step_time_s: float | None = None  # Wall time since the previous step ended; None at an attempt's first step
    tokens_per_s: float | None = None  # Tokens of this step over step_time_s, all ranks; None where either is unknown
    global_batch_samples: int | None = None  # Samples in this step, over all ranks and micro-batches
    consumed_samples: int | None = None  # Consumed by the run, this step and the skipped ones included
    consumed_tokens: int | None = None  # Counted, not global_step * seqlen (seqlen warms up); this step included
    epoch: float | None = None  # Passes over the data so far, fractions included, as the trainer counts them
    # Sum over the step's samples of a 31-bit hash of each one's tokens, before a length warmup shortens them where the
    # hook sees them before: equal steps have equal samples, in any order, on any ranks.
    batch_digest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedSample(Sample):
    """The step that a scrape saw, and what the trainer's counters and window maxima say of those since the one before.
    All counts leave out the step itself."""

    unseen_steps: int = 0  # Optimizer steps between the sample before and this one; for an attempt's first, all before
    unseen_nonfinite: int = 0  # Of these, the ones whose loss was nan or infinite
    unseen_skipped: int = 0  # Of these, the ones whose update the optimizer skipped
    unseen_spikes: int = 0  # Of these, the ones with a loss ratio above 1.2; a loss that is not finite counts
    # The largest finite loss of these steps, nats, as far back as the exporter's window reaches; None where the
    # window's maximum is this step's own, or may be an older step's.
    unseen_loss_max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariance(AtStep):
    """Adam's variance of each layer after one step: which part of the model moved first."""

    layers: tuple[str, ...]  # The embedding, each block by its path in the model, the head; the same at every step
    adam_variance_l1: tuple[float, ...]  # Of each layer: sum over its parameters of sqrt(v). nan when any v is
    adam_variance_max: tuple[float, ...]  # Of each layer: max over its parameters of sqrt(v). nan when any v is


@dataclass(frozen=True, slots=True, kw_only=True)
class State(AtStep):
    """Adam's moments and the parameters that it updates, before the next update: over all ranks, and in their parts.
    Sums and norms count each element once, whatever ranks hold it. None, or empty: not measured."""

    adam_variance_l1: float | None = None
    adam_variance_max: float | None = None
    momentum_l2: float | None = None
    param_norm: float | None = None
    adam_step: int | None = None  # Updates that Adam has counted, the largest count of any parameter on any rank
    adam_step_least: int | None = None  # The smallest of the ranks' largest counts
    layers: tuple[str, ...] = ()  # As those of LayerVariance
    layer_variance_l1: tuple[float, ...] = ()
    layer_variance_max: tuple[float, ...] = ()
    layer_momentum_l2: tuple[float, ...] = ()
    layer_param_norm: tuple[float, ...] = ()
    # Of each layer: the sum over its elements of m, and of the parameter, each with a sign of its own that goes by its
    # place. Comparable where the layouts are equal: a hash of which elements lie on which rank.
    layer_momentum_projection: tuple[float, ...] = ()
    layer_param_projection: tuple[float, ...] = ()
    state_layout: int | None = None
    # Of what lies on each rank, in the order of the ranks. More than 512 ranks share 512 entries, neighbours one entry:
    # of these the first counts once, the second twice, and so on, so that an exchange of two shows.
    rank_variance_l1: tuple[float, ...] = ()
    rank_momentum_l2: tuple[float, ...] = ()
    rank_param_norm: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSaved(State):
    """The state that a checkpoint of this step is made of, measured when the save begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLoaded(State):
    """The state as a resumed attempt has it before its first update: what the checkpoint has really brought back. The
    step is the one that it resumes from; the variances are 0, or None, where the moments were not loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation(AtStep):
    """A validation loss at full length, mean over tokens, nats."""

    loss: float
    seqlen: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(AtStep):
    tag: str
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    next_batch_digests: tuple[int, ...] = ()  # `batch_digest` that the next steps will have; empty where not foreseen


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTarget(AtStep):
    """Each rank keeps its part of the state after this step in its host's memory, whole; at an attempt's start: has it
    from the attempt before, whose process it goes on in. With the process it is gone."""

    held: tuple[int, ...]  # Steps whose states are in memory now, ascending, this one included; others are dropped
    digest: str | None = None  # Of all ranks: the sum of the first 48 bits of each one's SHA-256. None at a start
    size_bytes: int | None = None  # Over all ranks. None at a start


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksStandStill(AtStep):
    """The ranks that the next step waits for, once it takes very long; none once the training goes on. `global_step` is
    the last that rank 0 has completed. The tuples are of the same ranks, in the same order; many are cut short."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    since_unix_s: tuple[float, ...] = ()  # On rank 0's clock
    how: tuple[str, ...] = ()  # stopped: its process gives no sign of life. behind: it lives, others are further
    in_all: int = 0  # Ranks that stand still; more than are named where they are many


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked(AtStep):
    """All ranks stand at the end of this step. The trainer has closed its files and writes nothing more: this record is
    the journal's last while it waits. The processes and their memory stay. Ended by Released or RunFinished."""

    rollback: str  # The restart of the incident that it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(AtStep):
    """The attempt trains on after this step, as if it had not been parked, or since it could not be."""

    rollback: str  # That of Parked, or of PARK
    not_parked: str | None = None  # Why it was not parked, as a sentence; None: it was


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(AtStep):
    """The attempt ended by itself or was asked to: `reason` is finished, sigterm, kill_file, error: …; of one that was
    parked `resumed in place for ROLLBACK` (the next attempt goes on in its process) or `parked too long`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(SharedSettings):
    """The settings that an attempt runs with. The daemon compares them with what a rollback decided."""

    attempt: int
    time_unix_s: UnixSeconds
    run: str | None = None  # The name of the run, where the trainer knows it
    hook_version: str | None = None  # Version of the distribution that the hook came from
    host: str | None = None
    pid: int | None = None  # Process id of rank 0 on `host`
    process_start_unix_s: UnixSeconds | None = None  # Its start: start and pid together identify the process
    process_start_ticks: int | None = None  # The same in clock ticks since the boot: independent of the wall clock
    boot_id: str | None = None  # /proc/sys/kernel/random/boot_id: tells apart boots, and machines of one host name
    pid_namespace: str | None = None  # The namespace of `pid`, as pid:[4026531836]: each container has its own
    job_id: str | None = None  # The scheduler's; Slurm's as squeue shows it: `4711`, `7_2` of an array
    restart_count: int | None = None  # How often the scheduler has requeued this job
    parent_attempt: int | None = None  # The attempt whose checkpoint this one continues, or None
    resumed_from: int | None = None  # global_step of the checkpoint that was loaded; None from scratch
    in_place: bool = False  # Whether the attempt began in the process of its predecessor, which was parked
    can_park: bool = False  # Whether this trainer obeys PARK and RESUME
    incident: str | None = None  # The incident whose overrides are in force, or None
    rollback: str | None = None  # Which restart of that incident: the `rollback` of overrides.json, or None
    applied_once: tuple[str, ...] | None = None  # Ids of the one-shot changes so far; None: not reported
    # Position in the data order of the first sample that will be trained on: consumed_samples before the first step,
    # and past what is skipped there.
    first_sample_index: int | None = None
    # Samples of one epoch, those included that drop_last leaves out; 0: a stream without epochs; None: unknown.
    epoch_samples: int | None = None
    skipped_samples: int | None = None  # Left out of the data by mitigations over the run's life, each once
    skipped_ranges: tuple[dict[str, Any], ...] | None = None  # Which: SkippedRanges, as to_json gives them
    consumed_tokens: int | None = None  # consumed_tokens before the first step
    # The same less what random-LTD has dropped, averaged over the layers and rounded down: what the LR goes by where it
    # counts tokens. None is consumed_tokens.
    effective_tokens: int | None = None
    lr: float | None = None  # Learning rate that the first step will be taken with
    # Schedules in force, as their to_json gives them; where one is off, it does not warm up, has no ramp, drops
    # nothing, or has no metrics.
    lr_schedule: dict[str, Any] | None = None
    lr_schedule_unknown: str | None = None  # Why the trainer's LR is no schedule of the kind above, as a phrase
    seqlen: int | None = None  # Tokens per sample of the first step
    seqlen_schedule: dict[str, Any] | None = None
    seqlen_shortening: str | None = None  # How a batch gets shorter while the length warms up: a Shortening
    batch_size_schedule: dict[str, Any] | None = None
    random_ltd_schedule: dict[str, Any] | None = None
    curriculum_schedule: dict[str, Any] | None = None
    gradient_clipping: float | None = None  # Largest global L2 norm of the gradient; 0 does not clip
    free: dict[str, Any] | None = None  # The free-form changes that the trainer has made, as overrides.json gave them
    checkpoint_interval_steps: int | None = None
    accumulation_steps: int | None = None  # Micro-batches of the first step on each data-parallel rank
    world_size: int | None = None
    # What reads Adam's state on rank 0: native (C, on the CPU), triton (CUDA), chunked (torch's operations, slower);
    # several, joined by " and ", where the state lies on several devices.
    variance_pass: str | None = None
    trainer: str | None = None  # What reports, for a person: "Hugging Face's Trainer". None where unknown
    # Keys of overrides.json (`standing` and `once`) that this trainer applies; empty where it only observes. None is
    # unknown: a hook that did not declare it, an older journal, a log.
    applies: tuple[str, ...] | None = None
    # Fields of this record that were read from the trainer's arguments and not from what it runs with: a checkpoint
    # that is loaded may have brought older values back. None is none of them.
    from_arguments: tuple[str, ...] | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # What else the trainer wants on record (its arguments)


Record = (
    Sample
    | RunStarted
    | StateLoaded
    | StateSaved
    | LayerVariance
    | Validation
    | CheckpointSaved
    | MemoryTarget
    | RanksStandStill
    | Parked
    | Released
    | RunFinished
)
KINDS: dict[str, type[Record]] = {
    "sample": Sample,
    "run_started": RunStarted,
    "state_loaded": StateLoaded,
    "state_saved": StateSaved,
    "layer_variance": LayerVariance,
    "validation": Validation,
    "checkpoint_saved": CheckpointSaved,
    "memory_target": MemoryTarget,
    "ranks_stand_still": RanksStandStill,
    "parked": Parked,
    "released": Released,
    "run_finished": RunFinished,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}
_JOURNAL = Form(error=LineError, name="the line", ignores_unknown=True, checks_ranges=False, whole=COUNT)


def encode(record: Record) -> str:
    return dump_json({"kind": _NAMES[type(record)]} | {f.name: getattr(record, f.name) for f in fields(record)})


def decode(line: str) -> Record | None:
    """The record on one line; None for a kind that this version does not know. LineError says what is wrong."""
    data = load_object(line)
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise LineError("the line has no kind")
    cls = KINDS.get(kind)
    if cls is None:
        return None
    del data["kind"]
    return read(cls, data, form=_JOURNAL)
