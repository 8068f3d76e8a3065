"""What was observed of the run, as plain data and in groups: what is true now, whatever was done before. `Facts` holds
one of each group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sentinel.plan.incident.baseline import Baseline
from sentinel.plan.incident.incident import Approval, Place
from sentinel.plan.verification import Verification
from sentinel.vocabulary.overrides import Overrides


class Life(StrEnum):
    """Whether something may still write. Unknown never acts."""

    ALIVE = "alive"
    PARKED = "parked"  # alive, and proven not to write: every witness of it agrees
    GONE = "gone"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """What became of the process or the job that an attempt has named in its journal."""

    life: Life
    sentence: str  # what was asked, and the answer: "Slurm shows job 4711 as FAILED"
    certain: bool = True  # False: it could be of a namesake, on another machine or of another cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSeen:
    """One attempt, as a witness."""

    number: int
    reported: bool = True  # whether it has reported its start: before that nobody knows what it was started for
    rollback: str | None = None  # the rollback that it was started for; None for any other
    job_id: str | None = None  # the scheduler's job that it names, `4711` or `7_2`; None where it names none
    finished: bool = False  # whether it has reported its own end
    process_state: ProcessState | None = None  # None where it named neither a job nor a process
    grew_after_end: bool = False  # whether samples of it came after its job or process was seen gone

    @property
    def is_gone(self) -> bool:
        return self.process_state is not None and self.process_state.life is Life.GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    """A file that a trainer writes, and how long ago it was written last."""

    what: str  # the file, as a person finds it
    age_s: float  # by its filesystem's clock, or since this watch found it changed, whichever is less
    attempt: int | None = None  # the attempt whose journal it is; None for what any attempt may have written
    checkpoint: bool = False  # whether it is a file of a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSeen:
    """A process of the training that lives: it renews its heartbeat, or holds the lock of it."""

    what: str  # the process, as a person finds it
    age_s: float  # since the last renewal, by the filesystem's clock
    expires_s: float  # the age at which it would be over
    locked: bool = False
    rollback: str | None = None  # the rollback that it was started for; None for any other
    rank: int | None = None  # None where the heartbeat can't be read, as of the next two
    process: str | None = None  # host, boot, number and start of the process, as one name
    job_id: str | None = None  # the scheduler's job that it names

    @property
    def sentence(self) -> str:
        """That it lives, with the reason."""
        if self.age_s < self.expires_s:
            return f"{self.what} renewed its heartbeat {max(0.0, self.age_s):.0f} s ago"
        return f"{self.what} holds the lock of its heartbeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSeen:
    """The newest attempt, where the newest record of its journal is `parked`: what each witness of that says."""

    attempt: int
    rollback: str  # that it waits for
    global_step: int
    writers: tuple[str, ...] = ()  # the names under which a launcher would show its process, its job or their group
    process: ProcessState | None = None  # of the process that it named at its start; None where it named none
    identity: str | None = None  # of that process, as HeartbeatSeen.process; None where its start was not reported
    job_id: str | None = None  # the scheduler's job that it named
    resume_asked: bool = False  # whether RESUME for it is in the state folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint folder, as it stands on disk."""

    tag: str  # its name, as `latest` spells it, e.g. global_step3000.
    global_step: int  # the state after this many optimizer updates
    # Whether every file is there that its own layout asks for (by name; nothing was read). None: it may be half
    # written, or can't be looked at; it is no target then.
    complete: bool | None
    verified: bool | None = None  # whether its files were read and found whole; None is "not yet"
    problem: str | None = None  # why it is not complete or did not verify, as a sentence
    verification: Verification | None = None  # of `verified`: what was read for it, and when
    only_pinned: bool = False  # whether its folder is gone (a retention, a site's purge) and only its pin is left


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSeen:
    """A process or a scheduler's job that may write to the run's folders, or will as soon as it starts."""

    id: str  # as a person names it: "process 4711", "job 33_2"
    rollback: str | None = None  # the rollback that it was started for; None for any other
    pending: bool = False  # whether it waits in a queue: it writes nothing yet, and starts when the others are stopped
    foreign: str | None = None  # whose it is, as a sentence, where it is not of sentinel's own account
    group: str | None = None  # what was started together with it: processes of one start share it; None: not known
    remaining_s: float | None = None  # until its scheduler ends it; None for no limit, nan where that is not answered


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSeen:
    """How the launcher starts the job, and what is prepared for its next start."""

    prepares: bool = False  # whether a start has to be prepared, and checked, while the old job still runs
    prepared: frozenset[str] = frozenset()  # rollbacks whose start has been prepared
    restart_prepared: bool = False  # whether a restart of what runs now, without a rollback, has been prepared
    carries: frozenset[str] = frozenset()  # keys of overrides.json that a changed job script can carry to the trainer
    rewrites_script: bool = False  # whether changes are made in the job script: the trainer reads no overrides.json
    script_baseline: Baseline | None = None  # what the job script asks for, where changes are made in it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSeen:
    """What a launcher sees of the run's job."""

    writers: tuple[WriterSeen, ...] = ()
    known: bool = True  # False where nobody could say what runs: then everything may be alive, and nothing is moved
    why_unknown: str = ""
    elsewhere: bool = False  # whether the job is out of sight by configuration, which is no trouble
    start: StartSeen = field(default_factory=StartSeen)
    incomplete: frozenset[str] = frozenset()  # rollbacks of whose jobs some were submitted and some are still missing
    was_seen: bool = False  # whether there was a job before, which may have left more than processes: a log, a record
    process_states: Mapping[str | None, ProcessState] = field(
        default_factory=dict
    )  # by job id as reported; None: the last one seen
    lost: Mapping[str | None, str] = field(default_factory=dict)  # rollback (None: a restart) -> why its job is lost
    broken_off: str | None = None  # how the scheduler ended the newest attempt's job unasked: NODE_FAIL, TIMEOUT …
    log_path: str | None = None  # where the running job's output goes, where the launcher knows it
    last_log: str | None = None  # the same of the newest job, also of one that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbSeen:
    """What is to be done in W&B at a rollback, and for which rollbacks it was done."""

    how: str  # copy, fork or rewind
    branched: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectSeen:
    """The open incident's bisect, where the rung that comes next asks for it."""

    reason: str  # where it stands, or what it has come to, as a sentence
    over: bool = False  # whether it has come to its end, or can't be run here
    overrides: Overrides | None = None  # what the restart that follows is made with; None: none follows
    tag: str | None = None  # the checkpoint that it began from; None is from scratch
    global_step: int = 0
    needs_person: bool = False  # whether what follows is for a person: a machine has to be left out
    gpu_hours: float | None = None  # what its probes have taken; None where no trainer has reported its ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessEvidence:
    """What says that something of the run lives, or has ended."""

    jobs: JobsSeen = field(default_factory=JobsSeen)
    attempts: tuple[AttemptSeen, ...] = ()  # in their order
    files_seen: tuple[FileSeen, ...] = ()  # when the files that a trainer writes were written last
    heartbeats: tuple[HeartbeatSeen, ...] = ()  # that live; none where a visible job explains them
    gone_after_s: float = math.inf  # see Thresholds
    stalled_after_s: float = math.inf  # see Thresholds
    quiet_s: float = 0.0  # see Thresholds; 0 only where nothing is to be done
    step_time_s: float | None = None  # median of the last hundred steps; None where they were not measured
    overlap: str | None = None  # which two attempts train at the same time, as a sentence; None where one at most does
    stranger: str | None = None  # that the newest attempt is another run's, as a sentence; None where nothing says so
    starts_unix_s: tuple[float, ...] = ()  # when sentinel has started or resumed the job, by its own clock
    parked: ParkedSeen | None = None  # the newest attempt, where its newest record says that it is parked


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldersSeen:
    """What the run's folders hold: checkpoints, overrides.json, what TensorBoard and W&B have logged."""

    checkpoints: tuple[Checkpoint, ...] = ()  # ordered by global_step
    place: Place | None = None  # the save folder as it is now; None where nobody asked
    latest_tag: str | None = None  # what `latest` says; None when there is no such file
    by_newest: bool = False  # whether no file or link names the checkpoint: a restart resumes from the newest
    disagreement: str | None = None  # how `latest` and the other trackers contradict one another, as a sentence
    room_problem: str | None = None  # what there is too little of for the coming saves; None also where not looked at
    quarantined: frozenset[str] = frozenset()  # names of the incidents' folders in the quarantine of the checkpoints
    overrides: Overrides | None = None  # what overrides.json says; None when there is none
    tensorboard_past: int | None = None  # the largest step in TensorBoard's live event files; None for no TensorBoard
    tensorboard_samples: int | None = None  # the same of tags that are counted in samples
    tensorboard_git: str | None = None  # the git work tree that its folder lies in: something may commit and push it
    wandb: WandbSeen | None = None  # None where nothing is to be done in W&B

    def checkpoint(self, tag: str) -> Checkpoint | None:
        return next((c for c in self.checkpoints if c.tag == tag), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the trainer has reported to run with."""

    baseline: Baseline = field(default_factory=Baseline)  # of the newest attempt
    applies: frozenset[str] | None = None  # keys of overrides.json that the hook declares to apply; None is unknown
    trainer: str | None = None  # what the trainer calls itself; None where it has not said
    seeds_used: frozenset[int] = frozenset()
    world_size: int | None = None  # ranks of the newest attempt, one for each accelerator; None where it has not said

    def new_seed(self, baseline: Baseline) -> int:
        """One that the run has not had yet."""
        return max(self.seeds_used, default=baseline.seed or 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonsWord:
    """What a person has said by a file in the state folder."""

    approvals: Mapping[str, Approval] = field(default_factory=dict)  # incident -> a yes to what was proposed
    kill_file: bool = False  # whether STATE_DIR/KILL is there: every trainer that sees it stops
    paused: bool = False  # whether `sentinel pause` is in force: sentinel watches and pages, and does not act
