"""The actions, as data. Each is idempotent, and done when its effect is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
    spare: str | None = None  # the rollback whose own job is let be; None stops all
    keep_stacks: bool = False  # whether the stacks of its processes are kept first, since it hangs


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


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Start a rung's short training beside the run, in folders of its own."""

    probe: str
    incident: str


@dataclass(frozen=True, slots=True)
class StopProbe:
    """Ask a probe's job to end, then make it, and see it gone."""

    probe: str
    incident: str


@dataclass(frozen=True, slots=True)
class AdoptProbe:
    """Make what a probe has written the run's: event files, journal, and by rename its checkpoints after that step."""

    probe: str
    tag: str  # its last checkpoint
    after_step: int
    incident: str
    rollback: str


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
class AskForSave:
    """Ask the trainer for a checkpoint at the end of its step: STATE_DIR/SAVE, which a trainer may not know."""

    step: int  # of the warning that it is asked for
    reason: str


KINDS = {
    VerifyCheckpoint: "verify_checkpoint",
    RestorePinned: "restore_pinned",
    PrepareJob: "prepare_job",
    StopJob: "stop_job",
    QuarantineCheckpoints: "quarantine_checkpoints",
    PointLatest: "point_latest",
    CutTensorBoard: "cut_tensorboard",
    BranchWandb: "branch_wandb",
    WriteOverrides: "write_overrides",
    StartJob: "start_job",
    StartProbe: "start_probe",
    StopProbe: "stop_probe",
    AdoptProbe: "adopt_probe",
    FollowBisect: "follow_bisect",
    AskForSave: "ask_for_save",
}
_OfTheJob = VerifyCheckpoint | RestorePinned | PrepareJob | StopJob | StartJob
_OfTheFiles = QuarantineCheckpoints | PointLatest | CutTensorBoard | BranchWandb | WriteOverrides | AskForSave
_OfTheRun = _OfTheJob | _OfTheFiles
Action = _OfTheRun | StartProbe | StopProbe | AdoptProbe | FollowBisect


def to_json(action: Action) -> dict[str, Any]:
    return {"kind": KINDS[type(action)]} | asdict(action)


def span(tags: Sequence[str]) -> str:
    return tags[0] if len(tags) == 1 else f"{tags[0]} … {tags[-1]}"


def _cut(action: CutTensorBoard) -> str:
    cut = f"cut TensorBoard at step {action.at.global_step}; what comes after stays readable as …-{action.rollback}"
    if not action.git_work_tree:
        return cut
    where = f"Its folder lies in the git work tree {action.git_work_tree}, where this will show as changes"
    return f"{cut}. {where}: whatever commits or pushes there should wait"


def describe(action: Action) -> str:
    match action:
        case StartProbe(probe):
            return f"start the probe {probe} in its own folders"
        case StopProbe(probe):
            return f"stop the probe {probe} and see it gone"
        case AdoptProbe(probe, tag, step, _, _):
            return f"make the checkpoints of {probe} after step {step} up to {tag}, and its event files, the run's"
        case FollowBisect(incident):
            return f"follow the probes of {incident}'s bisect"
        case _:
            return _of_the_run(action)


def _of_the_run(action: _OfTheRun) -> str:
    match action:
        case VerifyCheckpoint(tag):
            return f"read {tag} whole and check it"
        case RestorePinned(tag):
            return f"bring {tag} back from its pin"
        case PrepareJob(_, rollback, _):
            return f"write and check what {rollback or 'the restart'} will submit"
        case StopJob(jobs):
            return f"stop the job ({', '.join(jobs)}) and see it gone"
        case QuarantineCheckpoints(tags, incident, _):
            later = f"{len(tags)} later checkpoint{'s' * (len(tags) > 1)}"
            return f"move {later} ({span(tags)}) into the quarantine of {incident}"
        case PointLatest(tag, _, _, _):
            return "take `latest` away: start from scratch" if tag is None else f"point `latest` at {tag}"
        case CutTensorBoard():
            return _cut(action)
        case BranchWandb(how, step, _, rollback):
            way = "as a fork of" if how == "fork" else "with the history copied from"
            began = f"begin a W&B run …-{rollback} {way} the trainer's run up to step {step}"
            return began if how != "rewind" else f"rewind the W&B run to step {step}: this writes to the trainer's run"
        case WriteOverrides(overrides):
            return f"write overrides.json for {overrides.rollback}"
        case StartJob(_, rollback):
            return f"start the job again{f' as {rollback}' if rollback else ''}"
        case AskForSave(step, _):
            return f"ask the trainer for a save, for the early warning at step {step}"
