"""Whether sentinel stands where it may act: the right account, on the right machine, with its own jobs in sight."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

from sentinel.act.file_activity import FileTimes
from sentinel.act.neighbours import Neighbours
from sentinel.act.saved_files import modified_unix_s
from sentinel.adapters.checkpoints import QUARANTINE, Claim
from sentinel.adapters.journal import last_beginning
from sentinel.adapters.process_states import elsewhere, user_name
from sentinel.config import Config
from sentinel.vocabulary.sample import RunStarted


class Fault(str):
    """A sentence that says why sentinel may not act from here."""

    __slots__ = ()


def faults_of(config: Config, near: Neighbours) -> list[str]:
    """Why nothing may be stopped, moved or started from here, as sentences that say what would be right: account,
    machine, or [launcher] user."""
    return [] if config.launcher.kind == "elsewhere" else list(dict.fromkeys(_faults(config, near)))


def _faults(config: Config, near: Neighbours) -> Iterator[str]:
    launcher, state_dir, checkpoints = config.launcher, near.state_dir, config.run.checkpoints
    saved = near.checkpoints.changed_last()
    yield from _of_owners(state_dir, saved or checkpoints)
    if (claimed := Claim(checkpoints, state_dir).problem()) is not None:
        yield Fault(claimed)
    quarantine = checkpoints / QUARANTINE
    if quarantine.exists() and quarantine.stat().st_dev != checkpoints.stat().st_dev:  # known before anything is moved
        yield Fault(f"{quarantine} is on another filesystem than {checkpoints}: a rename can't get there")
    if config.source.kind == "journal":
        yield from _of_state(state_dir, checkpoints, saved)
    if launcher.kind == "slurm" and launcher.user is not None:
        yield from _of_user(launcher.user)
    newest = last_beginning(state_dir)
    if launcher.kind == "local" and newest is not None and not newest.finished:
        yield from _of_machine(newest.started, FileTimes(state_dir, checkpoints), config.judge.gone_after_s)
    seen = near.launcher.look([newest.started] if newest is not None else [])
    yield from (Fault(w.foreign) for w in seen.writers if w.foreign)


def _of_machine(started: RunStarted, files: FileTimes, gone_after_s: float) -> Iterator[str]:
    """Of an attempt that has not ended and whose journal is not silent, by the clock of the journal's filesystem."""
    files_seen = files.of_journals([started.attempt], sure_s=0.0)
    if files_seen and files_seen[0].age_s >= gone_after_s:
        return
    attempt, job = started.attempt, started.job_id
    if (why := elsewhere(started)) is not None:
        yield Fault(
            f"attempt {attempt} runs on {started.host}, and can't be seen: {why}; "
            f"[launcher] kind = 'local' acts on this machine alone: run sentinel there"
        )
    elif job not in (None, _own_job()):
        yield Fault(f"attempt {attempt} is Slurm's job {job}: [launcher] kind should be 'slurm'")


def _own_job() -> str | None:
    """Slurm's id of the job that sentinel runs in, as an attempt reports its own."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _of_state(state_dir: Path, checkpoints: Path, saved: Path | None) -> Iterator[str]:
    """Where checkpoints are and no state folder is, the journals lie elsewhere, and nothing tells who lives."""
    if not state_dir.exists() and saved is not None:
        yield Fault(
            f"{state_dir} is not there, and {checkpoints} holds checkpoints: [run] state_dir should name the folder "
            "that the trainer writes its journal to"
        )


def _of_user(user: str) -> Iterator[str]:
    try:
        number = int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        yield Fault(f"[launcher] user: there is no account {user!r} on this machine")
        return
    if number != os.geteuid():
        yield Fault(
            f"[launcher] user is {user}, and sentinel runs as {user_name(os.geteuid())}: it would not see the jobs "
            f"that it submits; run it as {user}, or leave the key out"
        )


def _of_owners(state_dir: Path, saved: Path) -> Iterator[str]:
    """Of what was saved last and of the newest journal, where there are any: a project's folder may be a colleague's.
    `saved`: else the folder itself."""
    attempts = state_dir / "attempts"
    for newest in (saved, max(attempts.glob("*.jsonl"), key=modified_unix_s, default=attempts)):
        try:
            owner = newest.stat().st_uid
        except OSError:
            continue  # it is not there yet
        if owner != os.geteuid():
            theirs, mine = user_name(owner), user_name(os.geteuid())
            yield Fault(f"{newest} belongs to {theirs}, and sentinel runs as {mine}: run sentinel as {theirs}")
