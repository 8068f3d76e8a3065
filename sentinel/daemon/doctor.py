"""The checks of `sentinel doctor`: tries what a recovery needs, and writes to scratch folders of its own only."""

from __future__ import annotations

import getpass
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sentinel.adapters.event_files.runs_folder import runs_below
from sentinel.adapters.journal import last_beginning
from sentinel.adapters.lock import RunLock
from sentinel.adapters.slurm import SlurmClient
from sentinel.adapters.state_files import KILL, PAUSED, holds
from sentinel.config import Config
from sentinel.config.run_files import state_dir_of
from sentinel.daemon.doctor_readings import journal
from sentinel.daemon.finding import Checked, Near, adapters_of, probes
from sentinel.daemon.preconditions import faults_of
from sentinel.durable import move, os_errors_named, write_atomically
from sentinel.plan.observation import JobsSeen
from sentinel.vocabulary.errors import ConfigError, SentinelError, TemporaryError


def examine(config: Config, progress: Callable[[float], None] | None = None) -> list[Checked]:
    """`progress` is called with the share that is done of a look at the checkpoints."""
    near = adapters_of(config, progress)
    return [finding for check in _CHECKS for finding in _run(check, config, near)]


def check_before_acting(config: Config) -> None:
    """Raises ConfigError with the BAD findings on folders, account, machine and launcher.

    Findings that may pass by themselves (a controller that does not answer, too little space, a torn `latest`, a
    pause) are left to the watch, as are the readings and the ladder: a journal may be long, and the watch reads it.
    """
    near = adapters_of(config)
    findings = [finding for check in _BEFORE_ACTING for finding in _run(check, config, near)]
    wrong = [f"{f.what}: {f.sentence}" for f in findings if f.answer == "bad" and not f.passes]
    if wrong:
        raise ConfigError(
            f"mode is {config.policy.mode}, and `sentinel doctor` finds BAD: {'; '.join(wrong)}. "
            "The run is not watched; `sentinel watch --observe` watches it without acting"
        )


def _run(check: Callable[[Config, Near], Iterator[Checked]], config: Config, near: Near) -> Iterator[Checked]:
    try:
        with os_errors_named("a file of the run"):
            yield from check(config, near)
    except SentinelError as error:
        yield Checked("bad", check.__name__.replace("_", " "), str(error), passes=isinstance(error, TemporaryError))


def configuration(config: Config, _: Near) -> Iterator[Checked]:
    mode = config.policy.mode
    yield Checked("ok", "configuration", f"{config.run.name}, mode {mode}, launcher {config.launcher.kind}")
    if mode == "observe" and config.launcher.kind != "elsewhere":
        yield Checked("note", "mode", 'sentinel does not act; [policy] mode = "approve" or "act" lets it')


def state_folder(config: Config, _: Near) -> Iterator[Checked]:
    """Whether files can be written and locked there, and whether a watch has the lock now."""
    state_dir = state_dir_of(config)
    if not state_dir.is_dir():
        absent = f"{state_dir} does not exist; the trainer's hook or `sentinel watch` creates it"
        yield Checked("bad", "state folder", absent, passes=True)
        return
    yield _file_operations("state folder", state_dir)
    scratch = state_dir / f".doctor.{os.getpid()}"
    scratch.mkdir()
    try:
        with RunLock(scratch) as lock:
            lock.renew()
        yield Checked("ok", "lock", "this filesystem creates and keeps it (link and rename)")
    finally:
        shutil.rmtree(scratch)
    if not (state_dir / "lock").exists():
        yield Checked("note", "watch", "no watch of this run is running")
    elif (holder := RunLock(state_dir).held_by()) is None:
        yield Checked("note", "watch", "no watch is running; the last one left its lock, which the next takes over")
    else:
        yield Checked("ok", "watch", f"running: {holder}")
    for name in (PAUSED, KILL):
        if holds(state_dir, name):
            yield Checked("bad", "state folder", f"{state_dir / name} exists: sentinel does not act", passes=True)


def save_folder(config: Config, near: Near) -> Iterator[Checked]:
    """Whether there is a checkpoint to roll back to, what `latest` names, and the space for more saves."""
    checkpoints = near().checkpoints
    folder = checkpoints.folder.resolve()
    if not folder.is_dir():
        absent = f"{folder} does not exist; [run] checkpoints should name the save folder"
        yield Checked("bad", "checkpoints", absent, passes=not _has_saved(config))
        return
    yield _file_operations("checkpoints", folder)
    seen = checkpoints.look()
    found = seen.checkpoints
    complete = [c for c in found if c.complete]
    what = f"last {complete[-1].tag}" if complete else "there is no rollback target yet"
    yield Checked("ok" if complete else "note", "checkpoints", f"{len(complete)} of {len(found)} are complete: {what}")
    if seen.disagreement is not None:
        yield Checked("bad", "latest", seen.disagreement, passes=True)
    elif complete:
        yield Checked("ok", "latest", f"a restart resumes from {seen.latest}")
    yield from (Checked("note", "pins", note) for note in checkpoints.pins.notes())
    saves = config.policy.room_for_saves
    room = checkpoints.room_for_saves(saves) if saves else None
    if room is not None:
        left = f"{saves} more saves take {room.needed_bytes / 1e9:.2f} GB; {room.free_bytes / 1e9:.1f} GB are free"
        yield Checked("ok" if room.problem is None else "bad", "room", room.problem or left, passes=True)


def account_and_machine(config: Config, near: Near) -> Iterator[Checked]:
    what, wrong = "account and machine", faults_of(config, near())
    ours = Checked("ok", what, f"the run's files and jobs belong to {getpass.getuser()}")
    yield from [Checked("bad", what, fault) for fault in wrong] or [ours]


def tensorboard(config: Config, _: Near) -> Iterator[Checked]:
    folder = config.run.tensorboard
    if folder is None:
        unset = "[run] tensorboard is not set: a rollback does not change event files"
        there = runs_below(config.run.checkpoints)
        yield Checked("note", "TensorBoard", unset if there is None else f"{unset}, and {there} holds some")
    elif not folder.is_dir():
        yield Checked("bad", "TensorBoard", f"{folder} does not exist", passes=not _has_saved(config))
    else:
        yield _file_operations("TensorBoard", folder.parent)


def _has_saved(config: Config) -> bool:
    """Whether the run has saved a checkpoint: before that, folders that the trainer creates may be missing."""
    newest = last_beginning(state_dir_of(config))
    return newest is not None and newest.saved


def _file_operations(what: str, folder: Path) -> Checked:
    """Tries to write, sync, link and rename a file there, and to move it into a subfolder."""
    scratch = folder / f".sentinel-doctor.{os.getpid()}"
    began = time.monotonic()
    scratch.mkdir()
    try:
        write_atomically(scratch / "one", "x")
        move(scratch / "one", scratch / "room" / "one")
        try:
            os.link(scratch / "room" / "one", scratch / "two")
            links = "hard links too"
        except OSError:
            links = "but no hard links: checkpoints can't be pinned"
    finally:
        shutil.rmtree(scratch)
    return Checked("ok", what, f"{folder}: write, sync and rename work, {links} ({time.monotonic() - began:.3f} s)")


def launcher(config: Config, near: Near) -> Iterator[Checked]:
    settings = config.launcher
    if settings.kind == "slurm":
        yield from _slurm(config, near)
    elif settings.kind == "elsewhere":
        yield Checked("note", "launcher", "kind is elsewhere: sentinel watches the job and does not act on it")
    elif settings.kind == "commands":
        seen = near().launcher.look([])
        yield Checked("ok" if seen.known else "bad", "launcher", _of_commands(seen), passes=not seen.known)
        for key, (program, *_) in (("start", config.commands.start), ("stop", config.commands.stop)):
            if shutil.which(settings.working_directory / program if "/" in program else program) is None:
                yield Checked("bad", "launcher", f"[commands] {key}: program {program!r} not found")
    elif not settings.command:
        yield Checked("bad", "launcher", "[launcher] command is empty: sentinel can stop the job, but not start it")
    elif shutil.which(settings.command[0], path=os.environ.get("PATH")) is None:
        yield Checked("bad", "launcher", f"[launcher] command: program {settings.command[0]!r} not found")
    elif not settings.working_directory.is_dir():
        yield Checked("bad", "launcher", f"[launcher] working_directory: {settings.working_directory} does not exist")
    else:
        yield Checked("ok", "launcher", f"{settings.command[0]} can be run in {settings.working_directory}")
    if shutil.which("py-spy") is None:
        yield Checked("note", "py-spy", "not installed: a job that hangs is restarted without a record of its stacks")


def _of_commands(seen: JobsSeen) -> str:
    if not seen.known:
        return seen.why_unknown
    jobs = ", ".join(writer.id for writer in seen.writers) or "no job of this run"
    return f"[commands] list is understood: {jobs}; `start` and `stop` were not tried"


def _slurm(config: Config, near: Near) -> Iterator[Checked]:
    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    began = time.monotonic()
    jobs = client.jobs()
    yield Checked("ok", "Slurm", f"answers within {time.monotonic() - began:.2f} s; {len(jobs)} jobs of this user")
    newest = last_beginning(state_dir_of(config))
    seen = near().launcher.look([newest.started] if newest is not None else [])
    if not seen.known:
        yield Checked("bad", "Slurm", f"{seen.why_unknown}; submission was not tried", passes=True)
        return
    if not seen.writers:
        hint = "" if newest or config.launcher.job_name else " ([launcher] job_name finds it before its trainer begins)"
        yield Checked("note", "Slurm", f"no job of this run is in the queue{hint}: submission was not tried")
        return
    group = seen.writers[-1].id.partition("_")[0]
    script, recorded = client.script(group), client.recorded(group)
    yield Checked("ok", "job script", f"Slurm returns the script of job {group}: {len(script.splitlines())} lines")
    arguments = [*recorded.properties.arguments(), "--comment=sentinel", *config.launcher.sbatch_arguments]
    with tempfile.TemporaryDirectory(prefix="sentinel-doctor-") as folder:  # there is no state folder before an attempt
        scratch = Path(folder) / "script.sh"
        scratch.write_text(script, encoding="utf-8")
        client.test(arguments, scratch, recorded.script_arguments)
    yield Checked("ok", "submission", "sbatch --test-only accepts the job with a comment of sentinel's")


def paging(config: Config, _: Near) -> Iterator[Checked]:
    names = ", ".join(channel.name for channel in config.paging.channels)
    channels = f"{names}; `sentinel page --test` sends a test page through each"
    none = "no channel is configured; [[paging.webhook]] adds one (docs/CHANNELS.md)"
    yield Checked("ok", "paging", channels) if names else Checked("note", "paging", none)


_BEFORE_ACTING = (state_folder, save_folder, account_and_machine, tensorboard, launcher)
_CHECKS = (configuration, *_BEFORE_ACTING[:-1], journal, launcher, probes, paging)
