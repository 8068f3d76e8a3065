"""The actions, as data. Each is idempotent, and done when its effect is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from sentinel.vocabulary.overrides import Anchor, Overrides


@dataclass(frozen=True, slots=True)
class VerifyCheckpoint:
    """Read the checkpoint whole, without unpickling it."""

    tag: str


@dataclass(frozen=True, slots=True)
class RestorePinned:
    """Bring back a checkpoint that only its pin is left of."""

    tag: str


@dataclass(frozen=True, slots=True)
class PrepareJob:
    """Make ready what the restart will submit, and have it checked, while the old job still runs."""

    incident: str | None
    rollback: str | None  # None for a restart without a rollback
    overrides: Overrides | None = None  # what the rollback changes, where that is to be done in the job script


@dataclass(frozen=True, slots=True)
class StopJob:
    """Ask the run's processes and jobs to end, then make them, and see them gone; those that wait are taken back."""

    jobs: tuple[str, ...]
    except_for: str | None = None  # the rollback whose own job is let be; None stops all
    keep_stacks: bool = False  # whether the stacks of its processes are kept first, since it hangs


@dataclass(frozen=True, slots=True)
class Park:
    """Ask the trainer to stand at a step boundary with its files closed, and see it parked, in place of its end."""

    attempt: int
    rollback: str
    deadline_unix_s: float  # when a trainer that is still parked ends itself


@dataclass(frozen=True, slots=True)
class QuarantineCheckpoints:
    """Move checkpoints aside, by rename: never delete."""

    tags: tuple[str, ...]
    incident: str
    rollback: str


@dataclass(frozen=True, slots=True)
class PointLatest:
    """Make `latest` and its siblings name the target; None is no checkpoint at all (from scratch)."""

    tag: str | None
    global_step: int
    incident: str
    rollback: str
    by_newest: bool = False  # nothing names a checkpoint: a restart resumes from the newest, what is newer is moved


@dataclass(frozen=True, slots=True)
class FollowBisect:
    """Follow the probes of the incident's bisect, and start and stop what is due of them, in folders of their own."""

    incident: str


@dataclass(frozen=True, slots=True)
class CutTensorBoard:
    """Cut the event files at the target, each tag on its own axis; what is cut off becomes a run of its own."""

    at: Anchor
    incident: str
    rollback: str
    git_work_tree: str | None = None  # the git work tree that the folder lies in, to be said in the plan; None for none


@dataclass(frozen=True, slots=True)
class BranchWandb:
    """Let the restart log to W&B as a branch of the run: with the history up to the target, and none of after it."""

    how: str
    global_step: int
    incident: str
    rollback: str


@dataclass(frozen=True, slots=True)
class WriteOverrides:
    """Replace overrides.json."""

    overrides: Overrides


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start the run's command again."""

    incident: str | None
    rollback: str | None
    follow_up: bool = False  # from a checkpoint that the rollback itself has saved: then what is done once was done


@dataclass(frozen=True, slots=True)
class Resume:
    """Have the parked trainer begin a new attempt in its own processes, from the target and with overrides.json."""

    attempt: int
    rollback: str
    target: str | None  # None is from scratch
    global_step: int


@dataclass(frozen=True, slots=True)
class Release:
    """Have the parked trainer train on in the same attempt, as if it had not been parked."""

    attempt: int
    rollback: str


@dataclass(frozen=True, slots=True)
class AskForSave:
    """Ask the trainer for a checkpoint at the end of its step: STATE_DIR/SAVE, which a trainer may not know."""

    step: int  # of the warning that it is asked for
    reason: str


_OfTheRun = VerifyCheckpoint | RestorePinned | PrepareJob | StopJob | StartJob | AskForSave
_InPlace = Park | Resume | Release
_MovesFiles = QuarantineCheckpoints | PointLatest | CutTensorBoard | BranchWandb | WriteOverrides
Action = _OfTheRun | _InPlace | _MovesFiles | FollowBisect

MOVES_FILES = get_args(_MovesFiles)  # what a rollback does between the old job and the new one


def to_json(action: Action) -> dict[str, Any]:
    return {"kind": KINDS[type(action)]} | asdict(action)


def span(tags: Sequence[str]) -> str:
    return tags[0] if len(tags) == 1 else f"{tags[0]} … {tags[-1]}"


def describe(action: Action) -> str:
    return _NAMED[type(action)][1](action)


def _moved(action: QuarantineCheckpoints) -> str:
    later = f"{len(action.tags)} later checkpoint{'s' * (len(action.tags) > 1)}"
    return f"move {later} ({span(action.tags)}) into the quarantine of {action.incident}"


def _pointed(action: PointLatest) -> str:
    if not action.by_newest:
        return f"point `latest` at {action.tag}" if action.tag else "take `latest` away: start from scratch"
    left = f"{action.tag} is now the newest checkpoint" if action.tag else "no checkpoint is left"
    return f"check that {left}: there is no `latest` here, the trainer resumes from the newest"


def _cut(action: CutTensorBoard) -> str:
    cut = f"cut TensorBoard at step {action.at.global_step}; what comes after stays readable as …-{action.rollback}"
    if not action.git_work_tree:
        return cut
    where = f"Its folder lies in the git work tree {action.git_work_tree}, where this will show as changes"
    return f"{cut}. {where}: whatever commits or pushes there should wait"


def _branched(action: BranchWandb) -> str:
    if action.how == "rewind":
        return f"rewind the W&B run to step {action.global_step}: this writes to the trainer's run"
    way = "as a fork of" if action.how == "fork" else "with the history copied from"
    return f"begin a W&B run …-{action.rollback} {way} the trainer's run up to step {action.global_step}"


def _resumed(action: Resume) -> str:
    return (
        f"resume attempt {action.attempt} in its own processes from {action.target or 'scratch'} as {action.rollback}"
    )


# its name in JSON, and what it is going to do; what it has done: `sentences`
_NAMED: Mapping[type, tuple[str, Callable[[Any], str]]] = {
    VerifyCheckpoint: ("verify_checkpoint", lambda a: f"read {a.tag} whole and check it"),
    RestorePinned: ("restore_pinned", lambda a: f"bring {a.tag} back from its pin"),
    PrepareJob: ("prepare_job", lambda a: f"write and check what {a.rollback or 'the restart'} will submit"),
    StopJob: ("stop_job", lambda a: f"stop the job ({', '.join(a.jobs)}) and see it gone"),
    Park: ("park", lambda a: f"park attempt {a.attempt} at a step boundary and see that it writes nothing more"),
    QuarantineCheckpoints: ("quarantine_checkpoints", _moved),
    PointLatest: ("point_latest", _pointed),
    CutTensorBoard: ("cut_tensorboard", _cut),
    BranchWandb: ("branch_wandb", _branched),
    WriteOverrides: ("write_overrides", lambda a: f"write overrides.json for {a.overrides.rollback}"),
    StartJob: ("start_job", lambda a: f"start the job again{f' as {a.rollback}' if a.rollback else ''}"),
    Resume: ("resume", _resumed),
    Release: ("release", lambda a: f"let attempt {a.attempt} train on, as if it had not been parked"),
    FollowBisect: ("follow_bisect", lambda a: f"follow the probes of {a.incident}'s bisect"),
    AskForSave: ("ask_for_save", lambda a: f"ask the trainer for a save, for the attention logits at step {a.step}"),
}
KINDS = {action: name for action, (name, _) in _NAMED.items()}
