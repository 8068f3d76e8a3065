"""The tables of a run's configuration, each key with its default, its unit and its meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from sentinel.adapters.exposition.settings import Metrics
from sentinel.adapters.paging.settings import PagingSettings
from sentinel.adapters.wandb import WandbRun
from sentinel.config.commands_table import Commands
from sentinel.judge.thresholds import Thresholds
from sentinel.plan.choose.policy import Policy, Tuning
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.names import checked_name
from sentinel.vocabulary.numbers import AT_LEAST_0, AT_LEAST_1, POSITIVE, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The `[run]` table: the run's name and folders. Relative paths count from the configuration file."""

    name: str
    """The run's name in logs, metrics, pages and file names: printable, at most 128 bytes, without a /, and not
    beginning with a dot or a dash."""

    checkpoints: Path
    """The trainer's save folder, which holds the checkpoints: `latest` and global_stepN/, or checkpoint-N/."""

    state_dir: Path | None = None
    """Folder that trainer and daemon share; `sentinel init` sets it. The default is .sentinel/NAME in the folder that a
    command is typed in, so it depends on that folder."""

    tensorboard: Path | None = None
    """Folder of the run's event files; leave out where there is none."""

    reference: tuple[Path, ...] = ()
    """Other runs that this one should not be slower than at the same step: their runs/NAME.toml, or a log, a journal, a
    table, as `sentinel replay` reads them. A loss 20 % above one is reported as a plateau; nothing is done."""

    planned_steps: Annotated[tuple[int, ...], AT_LEAST_0] = ()
    """Steps of planned changes that the trainer does not report (other data, another stage): from there on the loss is
    not compared with earlier losses."""

    def __post_init__(self) -> None:
        checked_name(self.name, "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """The `[launcher]` table: how the job is started again."""

    kind: Literal["local", "slurm", "commands", "elsewhere"] = "local"
    """local: a process of this machine; slurm: jobs, arrays and chains of them; commands: any other scheduler, by the
    commands of [commands]; elsewhere: not visible to sentinel, as from a pod: it watches and pages, and never acts;
    [policy] mode has to be observe."""

    command: tuple[str, ...] = ()
    """local: the trainer's command line, as a list; run without a shell, with SENTINEL_STATE_DIR set."""

    working_directory: Path = Path()
    """Where a command is run, and a script submitted; default is the configuration file's folder."""

    log: Path | None = None
    """Where the job's output is appended; default STATE_DIR/job.log."""

    stop_grace_s: Annotated[float, AT_LEAST_0] = 60.0
    """local: seconds between asking the job to end (SIGTERM) and making it (SIGKILL). slurm, commands: seconds that one
    attempt waits for a cancelled job to be gone before it looks again; Slurm's COMPLETING can last minutes."""

    job_name: str | None = None
    """slurm: jobs of this name are the run's, also before its trainer has reported its first start, where their work
    directory and script are the run's too (docs/SLURM.md). Others are found by the ids that the trainer reports, with
    the rest of their arrays and their chains. Give each run a name of its own. commands: the name of the job that a
    person starts; jobs that sentinel starts have names of its own making."""

    script: Path | None = None
    """slurm: what to submit when no job of the run was ever seen; else it is the script that Slurm holds."""

    changes_in_script: bool = False
    """slurm: make a rung's changes in a copy of the job script, for a trainer that takes options (Megatron-DeepSpeed's)
    and does not read overrides.json. The original is never touched; `sentinel rollback --dry-run` shows the diff."""

    scheduler_override: (
        Literal["--override-lr-scheduler", "--override-opt_param-scheduler", "--override-opt-param-scheduler"] | None
    ) = None
    """slurm, with changes_in_script: the option with which the trainer takes its LR from its options and not from the
    checkpoint. Default: as megatron/arguments.py beside the trainer defines it, else as the script's options tell."""

    sbatch_arguments: tuple[str, ...] = ()
    """slurm: added to every submission, for options that Slurm does not report of a job, e.g. "--exclusive".
    In the long form, with the value after a "="."""

    user: str | None = None
    """slurm: account whose jobs to watch in mode observe; default is the account that sentinel runs as. Modes approve
    and act need that one."""

    exclude_after_failures: Annotated[int, AT_LEAST_1] = 2
    """slurm: a node that failed under so many of the run's jobs is left out of its submissions (--exclude)."""

    query_interval_s: Annotated[float, AT_LEAST_0] = 15.0
    """slurm: seconds between two queries; doubled up to 300 while Slurm does not answer. commands: between two calls of
    `list`."""

    slurm_timeout_s: Annotated[float, POSITIVE] = 20.0
    """slurm: seconds that one of its commands may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The `[source]` table: where the run's readings come from."""

    kind: Literal["journal", "log", "prometheus"] = "journal"
    """journal: what trainer_hooks writes, after every step. log: the trainer's own log, followed as it is written.
    prometheus: what a Prometheus has scraped of the trainer's /metrics, where its folders are not visible: sentinel
    watches and pages, and never acts; [policy] mode has to be observe."""

    path: Path | None = None
    """log: the file, or a pattern with one file for each rank ("logs/rank-*.txt"); default is `[launcher] log`."""

    format: str | None = None
    """log: its format, as `megatron`; default is to recognise it."""

    loss: str | None = None
    """log: the name of the training loss, where a log can be read in two ways; as `--loss` of `sentinel replay`."""

    step: str | None = None
    """log: the name of the step, likewise; as `--column step=NAME`."""

    url: str | None = None
    """prometheus: its address, as http://prometheus:9090 or https://metrics.example.org/under/a/path."""

    selector: str | None = None
    """prometheus: matchers beside the run's name, in PromQL without the braces: 'cluster="a"'."""

    token_file: Path | None = None
    """prometheus: file that holds a bearer token; read anew for each request."""

    user: str | None = None
    """prometheus: of HTTP's basic authentication."""

    password_file: Path | None = None
    """prometheus: file that holds its password; read anew for each request."""

    ca_file: Path | None = None
    """prometheus: certificates to trust beside the system's, PEM."""

    timeout_s: Annotated[float, POSITIVE] = 10.0
    """prometheus: seconds that one answer may take."""

    lookback_s: Annotated[float, Range(least=60, below=math.inf)] = 86_400.0
    """prometheus: how far back a new watch reads, in seconds (a day); older samples are not read."""

    def __post_init__(self) -> None:
        """ConfigError where the keys contradict one another."""
        if self.kind != "prometheus":
            return
        parts = urlsplit(self.url or "")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError("url should look like http://prometheus:9090, with kind = 'prometheus'")
        if parts.username is not None or parts.password is not None:
            raise ConfigError("url contains a user or a password; use user and password_file")
        if (self.user is None) != (self.password_file is None):
            raise ConfigError("set both user and password_file, or neither")
        if self.user is not None and self.token_file is not None:
            raise ConfigError("set token_file, or user and password_file, not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """The `[watch]` table: the loop's interval, and what it reads while the run is well."""

    poll_interval_s: Annotated[float, POSITIVE] = 5.0
    """Seconds between two looks at the run."""

    read_ahead_mb_per_s: Annotated[float | None, AT_LEAST_0] = None
    """While the run is well, its newest healthy checkpoint is verified in the background, in one thread of low
    priority, at no more than so many MB/s (10^6 bytes): a rollback then reads only what has changed. 0 is off. Default:
    100 where the checkpoints lie on a filesystem of this machine alone (ext4, xfs, btrfs, zfs, tmpfs …), off on any
    other (Lustre, GPFS, NFS, BeeGFS …)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectSettings:
    """The `[bisect]` table: how a probe is started, and what all probes of an incident may cost."""

    command: tuple[str, ...] = ()
    """local: a probe's command line, as a list. {checkpoints}, {state}, {tensorboard}, {until_step} and {name} stand
    for the probe's own. Default: [launcher] command, with the probe's folders in place of the run's."""

    options: tuple[str, ...] = ()
    """Added to the trainer's options in every probe, as "--flag=value", with the same placeholders:
    "--save={checkpoints}", "--exit-interval={until_step}"."""

    environment: tuple[str, ...] = ()
    """Variables of every probe, as "NAME=value". A probe always gets SENTINEL_STATE_DIR, SENTINEL_PROBE,
    SENTINEL_PROBE_CHECKPOINTS, SENTINEL_PROBE_UNTIL_STEP, and WANDB_MODE=disabled. With the same placeholders: where
    no word of the command names the checkpoints, as "SAVE={checkpoints}", by which the trainer finds them."""

    inputs: tuple[Path, ...] = ()
    """Files and folders among the run's own (below its checkpoints, state folder, TensorBoard folder, or its logs) that
    a probe is meant to read, such as a tokenizer in the save folder. Any other path of the run in a probe's command,
    job script or environment is refused."""

    writable: tuple[Path, ...] = ()
    """Folders that a probe may write to beside its own folder, temporary folders and caches, such as an index cache of
    the data; never one of the run's."""

    fp32_options: tuple[str, ...] = ()
    """What makes the trainer compute in fp32, e.g. ["--precision=fp32"]; () does not try it."""

    other_node_environment: tuple[str, ...] = ()
    """local: variables that put a probe on other hardware, e.g. ["CUDA_VISIBLE_DEVICES=4,5,6,7"]; () does not try it.
    slurm: not needed; such a probe excludes the nodes of the attempt (--exclude)."""

    nodes: Annotated[int | None, AT_LEAST_1] = None
    """slurm: nodes of each probe's job (--nodes); default as in the run's script."""

    parallel: Annotated[int, AT_LEAST_1] = 1
    """Probes that may run at once."""

    gpu_hours: Annotated[float | None, Range(least=0)] = None
    """GPU-hours (ranks x time) that all probes of one incident may cost; None is no limit."""

    probe_hours: Annotated[float, POSITIVE] = 24.0
    """Hours after which a probe is stopped, queueing included."""

    max_probes: Annotated[int, AT_LEAST_1] = 8
    """Probes of one incident."""

    window_steps: Annotated[int | None, AT_LEAST_1] = None
    """Steps that the control makes from its checkpoint; the other probes make twice as many at most. Default: up to
    the step of the alarm."""

    folder: Path | None = None
    """Where the probes' folders are, as FOLDER/RUN/INCIDENT, with one copy of the checkpoint; default
    STATE_DIR/bisect/INCIDENT."""

    def __post_init__(self) -> None:
        if odd := next((o for o in (*self.options, *self.fp32_options) if not o.startswith("--")), None):
            raise ConfigError(f"option {odd!r} should be like '--flag=value'")
        if odd := next((v for v in (*self.environment, *self.other_node_environment) if "=" not in v[1:]), None):
            raise ConfigError(f"environment: {odd!r} should be like 'NAME=value'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One run, as its TOML file describes it."""

    run: Run
    launcher: LauncherSettings = field(default_factory=LauncherSettings)
    commands: Commands = field(default_factory=Commands)
    source: SourceSettings = field(default_factory=SourceSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    judge: Thresholds = field(default_factory=Thresholds)
    policy: Policy = field(default_factory=Policy)
    tune: Tuning = field(default_factory=Tuning)
    bisect: BisectSettings = field(default_factory=BisectSettings)
    paging: PagingSettings = field(default_factory=PagingSettings)
    metrics: Metrics = field(default_factory=Metrics)
    wandb: WandbRun = field(default_factory=WandbRun)
