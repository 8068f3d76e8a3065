"""`sentinel doctor`: tries everything that a recovery will need, and touches nothing but a scratch folder of its."""

from __future__ import annotations

import getpass
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import typer

from sentinel.adapters.journal import last_beginning
from sentinel.adapters.lock import RunLock
from sentinel.adapters.slurm import SlurmClient
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.durable import os_errors_named
from sentinel.plan.applicability import not_applied
from sentinel.plan.ladder import Rung
from sentinel.plan.liveness import life_of
from sentinel.plan.look import Look
from sentinel.plan.mitigation import overrides_for
from sentinel.plan.observation import RunState
from sentinel.plan.witnesses import Life
from sentinel.vocabulary.errors import ConfigError, SentinelError, TemporaryError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor

__all__ = ["Finding", "doctor", "insist"]

Answer = Literal["ok", "note", "bad"]
_MARKS: dict[Answer, str] = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in a line, with what to do."""

    answer: Answer
    what: str
    sentence: str
    passes: bool = False
    """Whether it may pass by itself, or is what a recovery mends: then a watch begins all the same."""


def doctor(config: Config, *, as_json: bool) -> int:
    """All checks, one line each; 1 when something would make a recovery fail."""
    findings = [finding for check in _CHECKS for finding in _tried(check, config)]
    if as_json:
        told = [{"answer": f.answer, "what": f.what, "sentence": f.sentence} for f in findings]
        typer.echo(dump_json(told))
    for finding in findings if not as_json else ():
        typer.echo(f"{_MARKS[finding.answer]}  {finding.what}: {finding.sentence}")
    return int(any(finding.answer == "bad" for finding in findings))


def insist(config: Config) -> None:
    """The gate of mode act: ConfigError with what the doctor finds BAD of folders, accounts, machine and launcher.

    What may pass by itself (a controller that is away, too little room, a torn `latest`, a pause) is met later. The
    run's readings and the ladder are not looked at: a journal may be long, and is read by the watch itself.
    """
    findings = [finding for check in _GATE for finding in _tried(check, config)]
    wrong = [f"{f.what}: {f.sentence}" for f in findings if f.answer == "bad" and not f.passes]
    if wrong:
        raise ConfigError(
            f"mode is {config.policy.mode}, and `sentinel doctor` finds BAD: {'; '.join(wrong)}. "
            "Nothing is watched; `sentinel watch --observe` only watches"
        )


def _tried(check: Callable[[Config], Iterator[Finding]], config: Config) -> Iterator[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        with os_errors_named("a file of the run"):
            yield from check(config)
    except SentinelError as error:
        yield Finding("bad", name, str(error), passes=isinstance(error, TemporaryError))


def _configuration(config: Config) -> Iterator[Finding]:
    policy = config.policy
    yield Finding("ok", "configuration", f"{config.run.name}, mode {policy.mode}, launcher {config.launcher.kind}")
    if policy.mode == "observe":
        yield Finding("note", "mode", 'it watches and speaks; [policy] mode = "approve" or "act" lets it act')


def _state_folder(config: Config) -> Iterator[Finding]:
    state_dir = wiring.state_dir_of(config)
    if not state_dir.is_dir():
        yield Finding(
            "bad",
            "state folder",
            f"{state_dir} is not there; the trainer's hook or `sentinel watch` makes it",
            passes=True,
        )
        return
    yield _moves("state folder", state_dir)
    scratch = state_dir / f".doctor.{os.getpid()}"
    scratch.mkdir()
    try:
        with RunLock(scratch) as lock:
            lock.renew()
        yield Finding("ok", "lock", "this filesystem makes and keeps it (link and rename)")
    finally:
        shutil.rmtree(scratch)
    yield _holder(state_dir)
    for name in ("PAUSED", "KILL"):
        if (state_dir / name).exists():
            said = f"{state_dir / name} is there: nothing is done while it is"
            yield Finding("bad", "state folder", said, passes=True)


def _holder(state_dir: Path) -> Finding:
    if not (state_dir / "lock").exists():
        return Finding("note", "watch", "none runs for this run now")
    holder = RunLock(state_dir).held_by()
    if holder is None:
        return Finding("note", "watch", "none runs now; the last one left its lock, which the next takes over")
    return Finding("ok", "watch", f"it runs: {holder}")


def _save_folder(config: Config) -> Iterator[Finding]:
    checkpoints = wiring.neighbours_of(config).checkpoints
    folder = checkpoints.folder
    if not folder.is_dir():
        absent = f"{folder} is not there; [run] checkpoints should name the save folder"
        yield Finding("bad", "checkpoints", absent, passes=not _has_saved(config))
        return
    yield _moves("checkpoints", folder)
    found = checkpoints.list()
    whole = [c for c in found if c.complete]
    if not whole:
        yield Finding("note", "checkpoints", f"none of {len(found)} is whole: there is nothing to roll back to yet")
    else:
        yield Finding("ok", "checkpoints", f"{len(whole)} of {len(found)} look whole, the last is {whole[-1].tag}")
    if (disagreement := checkpoints.disagreement()) is not None:
        yield Finding("bad", "latest", disagreement, passes=True)
    elif whole:
        yield Finding("ok", "latest", f"a restart resumes from {checkpoints.latest()}")
    yield from _room(config)


def _room(config: Config) -> Iterator[Finding]:
    saves = config.policy.room_for_saves
    room = wiring.neighbours_of(config).checkpoints.room_for_saves(saves) if saves else None
    if room is not None:
        quota = "no quota that can be seen" if room.quota_bytes is None else f"{room.quota_bytes / 1e9:.1f} GB of quota"
        left = f"{saves} more saves take {room.needed_bytes / 1e9:.2f} GB; {room.free_bytes / 1e9:.1f} GB free, {quota}"
        yield Finding("ok" if room.problem is None else "bad", "room", room.problem or left, passes=True)


def _ground(config: Config) -> Iterator[Finding]:
    """The same check as in `watch`, `rollback` and `undo`."""
    found = list(dict.fromkeys(wiring.faults_of(config)))
    for fault in found:
        yield Finding("bad", "account and machine", fault)
    if not found:
        yield Finding("ok", "account and machine", f"the run's files and jobs are those of {getpass.getuser()}")


def _has_saved(config: Config) -> bool:
    """Whether the run has saved a checkpoint: before that, what the trainer makes may be missing."""
    newest = last_beginning(wiring.state_dir_of(config))
    return newest is not None and newest.saved


def _moves(what: str, folder: Path) -> Finding:
    """Whether a file can be written, synced, linked and renamed there, and into a subfolder."""
    scratch = folder / f".sentinel-doctor.{os.getpid()}"
    began = time.monotonic()
    scratch.mkdir()
    try:
        one = scratch / "one"
        with one.open("w") as file:
            file.write("x")
            file.flush()
            os.fsync(file.fileno())
        (scratch / "room").mkdir()
        one.rename(scratch / "room" / "one")
        try:
            os.link(scratch / "room" / "one", scratch / "two")
            pins = "hard links too"
        except OSError:
            pins = "but no hard links: checkpoints can't be pinned"
    finally:
        shutil.rmtree(scratch)
    return Finding("ok", what, f"{folder}: write, sync and rename work, {pins} ({time.monotonic() - began:.3f} s)")


def _tensorboard(config: Config) -> Iterator[Finding]:
    folder = config.run.tensorboard
    if folder is None:
        yield Finding("note", "TensorBoard", "[run] tensorboard is not set: its files are left alone")
    elif not folder.is_dir():
        yield Finding("bad", "TensorBoard", f"{folder} is not there", passes=not _has_saved(config))
    else:
        yield _moves("TensorBoard", folder.parent)


def _journal(config: Config) -> Iterator[Finding]:
    look = _look(config)
    attempt = look.history.latest
    if attempt is None and config.source.kind == "log":
        path = wiring.source_log_of(config, wiring.state_dir_of(config))
        yield Finding("bad", "log", f"nothing in {path} is a training step, or it is not there: see docs/SOURCES.md")
        return
    if attempt is None and config.source.kind == "prometheus":
        yield Finding("bad", "Prometheus", f"{config.source.url} has nothing of a run {config.run.name!r}, or is away")
        return
    if attempt is None:
        yield Finding(
            "bad", "journal", "no attempt has written one: is `trainer_hooks.attach` called, with this state_dir?"
        )
        return
    last = attempt.samples[-1] if attempt.samples else None
    timed = last is not None and math.isfinite(last.time_unix_s)
    age = f"its last sample is {wiring.clock() - last.time_unix_s:.0f} s old" if last and timed else "no sample yet"
    if last and not timed:
        age = f"its last sample, of step {last.global_step}, has no time"
    yield Finding("ok", "journal", f"attempt {attempt.number}, {attempt.made} samples; {age}")
    started = attempt.started
    if started is None:
        yield Finding(
            "note", "start report", "the trainer has not reported what it runs with: restarts can't be proved"
        )
        return
    mine = version("training-sentinel")
    theirs = started.hook_version
    same = "the same as" if theirs == mine else "another than"
    answer: Answer = "ok" if theirs == mine else "note"
    yield Finding(answer, "versions", f"the hook's is {theirs or 'not reported'}, {same} the daemon's ({mine})")
    if look.run.jobs.known and not look.run.jobs.writers:
        known = life_of(look.run)
        unknown = known.life is Life.UNKNOWN
        yield Finding("bad" if unknown else "note", "job", known.sentence if unknown else "none is there now")
    elif look.run.jobs.known:
        yield Finding("ok", "job", ", ".join(w.id + (" (waiting)" if w.pending else "") for w in look.run.jobs.writers))
    else:
        yield Finding("note" if look.run.jobs.elsewhere else "bad", "job", look.run.jobs.why_unknown)


def _ladder(config: Config) -> Iterator[Finding]:
    """Whether each rung could be carried out, with what the trainer has reported and with what it applies."""
    run = _look(config).run
    rungs = {rung: _uncarried(rung, run) for rung in config.policy.ladder}
    none_left = None not in rungs.values()
    for rung, why in rungs.items():
        if why is not None:
            follows = "no rung is left" if none_left else "it is skipped, and the next rung is tried"
            yield Finding("bad" if none_left else "note", "ladder", f"rung {rung.name!r}: {why}; {follows}")
    yield Finding(
        "ok", "ladder", f"{len(config.policy.ladder)} rungs: {', '.join(r.name for r in config.policy.ladder)}"
    )


def _uncarried(rung: Rung, run: RunState) -> str | None:
    """Why the rung could not be carried out, as a sentence; None where it could, or where it starts nothing."""
    if rung.page or rung.wait_steps is not None:
        return None
    anchor = Anchor(global_step=1, consumed_samples=1, consumed_tokens=1)
    try:
        overrides = overrides_for(
            rung, run.baseline, incident="doctor", rollback="doctor", anchor=anchor, new_seed=1, onset_past=2
        )
    except ConfigError as error:
        return str(error)
    return not_applied(overrides, run.baseline, run)


def _launcher(config: Config) -> Iterator[Finding]:
    launcher = config.launcher
    if launcher.kind == "slurm":
        yield from _slurm(config)
    elif launcher.kind == "elsewhere":
        yield Finding("note", "launcher", "the job runs elsewhere: it is watched, and nothing is done to it")
    elif not launcher.command:
        yield Finding("bad", "launcher", "[launcher] command is empty: sentinel could stop the job, and not start it")
    elif shutil.which(launcher.command[0], path=os.environ.get("PATH")) is None:
        yield Finding("bad", "launcher", f"[launcher] command: {launcher.command[0]!r} is no program that can be run")
    elif not launcher.working_directory.is_dir():
        yield Finding("bad", "launcher", f"[launcher] working_directory: {launcher.working_directory} is not there")
    else:
        yield Finding("ok", "launcher", f"{launcher.command[0]} can be run in {launcher.working_directory}")
    if shutil.which("py-spy") is None:
        yield Finding("note", "py-spy", "not installed: a job that hangs is restarted without its stacks")


def _slurm(config: Config) -> Iterator[Finding]:
    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    began = time.monotonic()
    jobs = client.jobs()
    yield Finding("ok", "Slurm", f"it answers within {time.monotonic() - began:.2f} s; {len(jobs)} jobs of this user's")
    newest = last_beginning(wiring.state_dir_of(config))
    known = {newest.started.job_id.partition("_")[0]} if newest is not None and newest.started.job_id else set()
    ours = [j for j in jobs if not j.ended and (j.group in known or j.name == config.launcher.job_name)]
    if not ours:
        yield Finding("note", "Slurm", "no job of this run is in the queue: what a restart needs was not tried")
        return
    job = ours[-1]
    script, recorded = client.script(job.group), client.recorded(job.group)
    yield Finding(
        "ok", "job script", f"Slurm hands out the script of job {job.group}: {len(script.splitlines())} lines"
    )
    scratch = wiring.state_dir_of(config) / f".doctor.{os.getpid()}.sh"
    scratch.write_text(script, encoding="utf-8")
    try:
        client.test(
            [*recorded.properties.arguments(), "--comment=sentinel", *config.launcher.sbatch_arguments],
            scratch,
            recorded.script_arguments,
        )
    finally:
        scratch.unlink()
    yield Finding("ok", "submission", "sbatch --test-only takes the job as it is, with a comment of ours")


def _paging(config: Config) -> Iterator[Finding]:
    names = [channel.name for channel in config.paging.channels]
    if names:
        yield Finding("ok", "paging", f"{', '.join(names)}; `sentinel page --test` tries whether they arrive")
    else:
        yield Finding("note", "paging", "nobody is paged: [[paging.webhook]] and its kin say who (docs/PAGING.md)")


def _look(config: Config) -> Look:
    return wiring.observer_of(config, wiring.neighbours_of(config)).look(wiring.clock())


_GATE = (_state_folder, _save_folder, _ground, _tensorboard, _launcher)
_CHECKS = (
    _configuration,
    _state_folder,
    _save_folder,
    _ground,
    _tensorboard,
    _journal,
    _ladder,
    _launcher,
    _paging,
)
