"""Whether sentinel stands where it may act: the right account, on the right machine, with its own jobs in sight."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from sentinel.act.file_activity import modified_unix_s
from sentinel.act.neighbours import Launcher
from sentinel.adapters.checkpoints import QUARANTINE, Claim
from sentinel.adapters.journal import Beginning
from sentinel.adapters.witnesses import elsewhere, user_name


class Fault(str):
    """A sentence that says why sentinel may not act from here."""

    __slots__ = ()


def faults(
    *,
    kind: Literal["local", "slurm", "elsewhere"],
    user: str | None,
    source: Literal["journal", "log", "prometheus"],
    state_dir: Path,
    checkpoints: Path,
    launcher: Launcher,
    newest: Beginning | None,
    silent_s: float,
    gone_after_s: float,
) -> Iterator[str]:
    """Why nothing may be stopped, moved or started from here, as sentences that say what would be right. `newest` is
    the newest attempt, `silent_s` the age of its journal; `gone_after_s`: see Thresholds."""
    if kind == "elsewhere":
        return
    yield from _of_owners(state_dir, checkpoints)
    if (claimed := Claim(checkpoints, state_dir).problem()) is not None:
        yield Fault(claimed)
    quarantine = checkpoints / QUARANTINE
    if quarantine.exists() and quarantine.stat().st_dev != checkpoints.stat().st_dev:  # known before a race is run
        yield Fault(f"{quarantine} is on another filesystem than {checkpoints}: a rename can't get there")
    if source == "journal":
        yield from _of_state(state_dir, checkpoints)
    started = [newest.started] if newest is not None else []
    if kind == "slurm" and user is not None:
        yield from _of_user(user)
    if kind == "local" and newest is not None and not newest.finished and silent_s < gone_after_s:
        attempt, host, job = newest.started.attempt, newest.started.host, newest.started.job_id
        if (why := elsewhere(newest.started)) is not None:
            yield Fault(
                f"attempt {attempt} runs on {host}, and can't be seen: {why}; "
                f"[launcher] kind = 'local' acts on this machine alone: run sentinel there"
            )
        elif job not in (None, _own_job()):
            yield Fault(f"attempt {attempt} is Slurm's job {job}: [launcher] kind should be 'slurm'")
    yield from (Fault(w.foreign) for w in launcher.look(started).writers if w.foreign)


def _own_job() -> str | None:
    """Slurm's id of the job that sentinel runs in, as an attempt reports its own."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def _of_state(state_dir: Path, checkpoints: Path) -> Iterator[str]:
    """Where checkpoints are and no state folder is, the journals lie elsewhere, and nothing tells who lives."""
    if not state_dir.exists() and any(checkpoints.glob("*[0-9]")):
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


def _of_owners(state_dir: Path, checkpoints: Path) -> Iterator[str]:
    """Of what lies in the folders, where something does: a project's folder may be a colleague's."""
    for folder, inside in ((checkpoints, "*[0-9]"), (state_dir / "attempts", "*.jsonl")):
        newest = max(folder.glob(inside), key=modified_unix_s, default=folder)
        try:
            owner = newest.stat().st_uid
        except OSError:
            continue  # it is not there yet
        if owner != os.geteuid():
            theirs, mine = user_name(owner), user_name(os.geteuid())
            yield Fault(f"{newest} belongs to {theirs}, and sentinel runs as {mine}: run sentinel as {theirs}")
