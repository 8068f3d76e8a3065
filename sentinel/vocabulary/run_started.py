"""What an attempt says of itself when it starts, as the metrics journal holds it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from sentinel.vocabulary.codec import Form, read
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.ranges import UnixSeconds
from sentinel.vocabulary.training_settings import SharedSettings, TrainingSettings, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(SharedSettings):
    """What an attempt really runs with: the daemon's proof that a restart did what it was meant to."""

    attempt: int
    time_unix_s: UnixSeconds
    run: str | None = None  # The name of the run, where the trainer knows it
    hook_version: str | None = None  # Version of the distribution that the hook came from
    host: str | None = None
    pid: int | None = None  # Process id of rank 0 on `host`
    # When that process was started: with the pid it names the process for good.
    process_start_unix_s: UnixSeconds | None = None
    # Clock ticks from that machine's boot to the process's start: a change of the machine's clock does not move it.
    process_start_ticks: int | None = None
    # The machine's own name for its boot (/proc/sys/kernel/random/boot_id): two machines may have one host name.
    boot_id: str | None = None
    # The namespace that `pid` counts in, as pid:[4026531836]: a container has one of its own.
    pid_namespace: str | None = None
    # The scheduler's id of the job, or None; Slurm's as squeue shows it: `4711`, or `7_2` for a task of an array.
    job_id: str | None = None
    restart_count: int | None = None  # How often the scheduler has requeued this job
    parent_attempt: int | None = None  # The attempt whose checkpoint this one continues, or None
    # global_step of the checkpoint that was loaded; None when training starts from scratch.
    resumed_from: int | None = None
    incident: str | None = None  # The incident whose overrides are in force, or None
    rollback: str | None = None  # Which restart of that incident: the `rollback` of overrides.json, or None
    # Ids of the one-shot overrides that the run has had so far, this start's included.
    applied_once: tuple[str, ...] = ()
    # Position in the data order of the first sample that will be trained on: consumed_samples before the first step,
    # and past what is skipped there.
    first_sample_index: int | None = None
    # Samples that mitigations have left out of the data so far, over the run's life, each once.
    skipped_samples: int | None = None
    # Which ones: SkippedRanges, as to_json gives them; kept in the checkpoint's client state.
    skipped_ranges: tuple[dict[str, Any], ...] | None = None
    consumed_tokens: int | None = None  # consumed_tokens before the first step
    # The same less what random-LTD has dropped, averaged over the layers and rounded down: what the LR goes by where it
    # counts tokens. None is consumed_tokens.
    effective_tokens: int | None = None
    lr: float | None = None  # Learning rate that the first step will be taken with
    lr_schedule: dict[str, Any] | None = None  # The LrSchedule in force, as its to_json gives it
    seqlen: int | None = None  # Tokens per sample of the first step
    # The SeqlenSchedule in force, as its to_json gives it; one that does not warm up where SLW is off.
    seqlen_schedule: dict[str, Any] | None = None
    seqlen_shortening: str | None = None  # How a batch gets shorter while the length warms up: a Shortening
    # The BatchSizeSchedule in force, as its to_json gives it; one without a ramp where the batch does not warm up.
    batch_size_schedule: dict[str, Any] | None = None
    # The RandomLtdSchedule in force, as its to_json gives it; one that drops nothing where random-LTD is off.
    random_ltd_schedule: dict[str, Any] | None = None
    # The CurriculumSchedule in force, as its to_json gives it; one without metrics where nothing paces the data.
    curriculum_schedule: dict[str, Any] | None = None
    # Largest global L2 norm of the gradient, as the engine holds it; 0 does not clip.
    gradient_clipping: float | None = None
    free: dict[str, Any] | None = None  # The free-form changes that the trainer has made, as overrides.json gave them
    checkpoint_interval_steps: int | None = None
    world_size: int | None = None
    # What reports, as a person calls it: "Hugging Face's Trainer". None where nobody has said.
    trainer: str | None = None
    # Keys of overrides.json (`standing` and `once`) that this trainer applies; empty where it only observes. None is
    # unknown: a hook that did not declare it, an older journal, a log.
    applies: tuple[str, ...] | None = None
    # Fields of this record that were read from the trainer's arguments and not from what it runs with: a checkpoint
    # that is loaded may have brought older values back. None is none of them.
    from_arguments: tuple[str, ...] | None = None
    # Whatever else the trainer wants on the record (its arguments, versions).
    settings: dict[str, Any] = field(default_factory=dict)


# Settings as a run has them, not as a person may ask for them: any number counts.
AS_REPORTED = Form(
    error=ConfigError, name="run_started", prints_whole_as_float=True, ignores_unknown=True, checks_ranges=False
)


def reported_settings(started: RunStarted) -> TrainingSettings:
    """What the attempt reports that it trains with. ConfigError where a schedule is of no known kind."""
    renamed = {name: setting.reported_as for name, setting in settings_of().items() if setting.reported_as}
    same = {name: name for name in ("free", *(f.name for f in fields(SharedSettings)))}
    told = {name: getattr(started, reported_as) for name, reported_as in (renamed | same).items()}
    empty = [name for name in ("lr", "seqlen") if told[name] == {}]
    return read(TrainingSettings, told | dict.fromkeys(empty), form=AS_REPORTED)
