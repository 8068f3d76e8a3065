"""`sentinel doctor`: tries everything that a recovery will need, and touches nothing but a scratch folder of its."""

from __future__ import annotations

import math
import os
import pwd
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import typer

from sentinel.act.observe import Look
from sentinel.adapters.lock import RunLock
from sentinel.adapters.slurm import SlurmClient
from sentinel.cli import wiring
from sentinel.config import Config
from sentinel.plan.mitigations import overrides_for
from sentinel.vocabulary.errors import ConfigError, SentinelError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.overrides import Anchor
from sentinel.vocabulary.sample import RunStarted

__all__ = ["Finding", "doctor"]

Answer = Literal["ok", "note", "bad"]
_MARKS: dict[Answer, str] = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in a line, with what to do."""

    answer: Answer
    what: str
    sentence: str


def doctor(config: Config, *, as_json: bool) -> int:
    """All checks, one line each; 1 when something would make a recovery fail."""
    findings = [finding for check in _CHECKS for finding in _tried(check, config)]
    if as_json:
        typer.echo(dump_json([asdict(finding) for finding in findings]))
    for finding in findings if not as_json else ():
        typer.echo(f"{_MARKS[finding.answer]}  {finding.what}: {finding.sentence}")
    return int(any(finding.answer == "bad" for finding in findings))


def _tried(check: Callable[[Config], Iterator[Finding]], config: Config) -> Iterator[Finding]:
    name = check.__name__.strip("_").replace("_", " ")
    try:
        yield from check(config)
    except (SentinelError, OSError) as error:
        yield Finding("bad", name, str(error))


def _configuration(config: Config) -> Iterator[Finding]:
    policy = config.policy
    yield Finding("ok", "configuration", f"{config.run.name}, mode {policy.mode}, launcher {config.launcher.kind}")
    if policy.mode == "observe":
        yield Finding("note", "mode", 'it watches and speaks; [policy] mode = "approve" or "act" lets it act')


def _state_folder(config: Config) -> Iterator[Finding]:
    state_dir = wiring.state_dir_of(config)
    if not state_dir.is_dir():
        yield Finding(
            "bad", "state folder", f"{state_dir} is not there; the trainer's hook or `sentinel watch` makes it"
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
            yield Finding("bad", "state folder", f"{state_dir / name} is there: nothing is done while it is")


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
        yield Finding("bad", "checkpoints", f"{folder} is not there; [run] checkpoints should name the save folder")
        return
    yield _moves("checkpoints", folder)
    yield _owned(folder)
    found = checkpoints.list()
    whole = [c for c in found if c.complete]
    if not whole:
        yield Finding("note", "checkpoints", f"none of {len(found)} is whole: there is nothing to roll back to yet")
    else:
        yield Finding("ok", "checkpoints", f"{len(whole)} of {len(found)} look whole, the last is {whole[-1].tag}")
    if (disagreement := checkpoints.disagreement()) is not None:
        yield Finding("bad", "latest", disagreement)
    elif whole:
        yield Finding("ok", "latest", f"a restart resumes from {checkpoints.latest()}")
    yield from _room(config)


def _room(config: Config) -> Iterator[Finding]:
    saves = config.policy.room_for_saves
    room = wiring.neighbours_of(config).checkpoints.room_for_saves(saves) if saves else None
    if room is not None:
        quota = "no quota that can be seen" if room.quota_bytes is None else f"{room.quota_bytes / 1e9:.1f} GB of quota"
        left = f"{saves} more saves take {room.needed_bytes / 1e9:.2f} GB; {room.free_bytes / 1e9:.1f} GB free, {quota}"
        yield Finding("ok" if room.problem is None else "bad", "room", room.problem or left)


def _owned(folder: Path) -> Finding:
    owner = folder.stat().st_uid
    if owner == os.geteuid() or os.geteuid() == 0:
        return Finding("ok", "owner", f"{folder} belongs to {_user(owner)}")
    sentence = f"{folder} belongs to {_user(owner)}, and sentinel runs as {_user(os.geteuid())}: run it as the owner"
    return Finding("bad", "owner", sentence)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


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
        yield Finding("bad", "TensorBoard", f"{folder} is not there")
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
        yield Finding("note", "job", "none of the run's is there now")
    elif look.run.jobs.known:
        yield Finding("ok", "job", ", ".join(w.id + (" (waiting)" if w.pending else "") for w in look.run.jobs.writers))
    else:
        yield Finding("note" if look.run.jobs.elsewhere else "bad", "job", look.run.jobs.why_unknown)


def _ladder(config: Config) -> Iterator[Finding]:
    """Whether each rung could be carried out with what the trainer has reported."""
    baseline = _look(config).run.baseline
    anchor = Anchor(global_step=1, consumed_samples=1, consumed_tokens=1)
    for rung in (rung for rung in config.policy.ladder if rung.restarts):
        try:
            overrides_for(rung, baseline, incident="doctor", rollback="doctor", anchor=anchor, new_seed=1)
        except ConfigError as error:
            yield Finding("bad", "ladder", str(error))
    yield Finding(
        "ok", "ladder", f"{len(config.policy.ladder)} rungs: {', '.join(r.name for r in config.policy.ladder)}"
    )


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
    known = {word.partition("_")[0] for s in _started(config) if (word := s.job_id)}
    ours = [j for j in jobs if not j.ended and (j.group in known or j.name == config.launcher.job_name)]
    if not ours:
        yield Finding("note", "Slurm", "no job of this run is in the queue: what a restart needs was not tried")
        return
    job = ours[-1]
    script, recorded = client.script(job.group), client.recorded(job.group)
    yield Finding(
        "ok", "job script", f"Slurm hands out the script of job {job.group}: {len(script.splitlines())} lines"
    )
    mine = job.user == _user(os.geteuid()) or os.geteuid() == 0
    sentence = f"job {job.group} belongs to {job.user}" + ("" if mine else ": only its owner can cancel it")
    yield Finding("ok" if mine else "bad", "rights", sentence)
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


def _started(config: Config) -> list[RunStarted]:
    attempts = _look(config).history.attempts.values()
    return [a.started for a in attempts if a.started is not None]


_CHECKS = (_configuration, _state_folder, _save_folder, _tensorboard, _journal, _ladder, _launcher, _paging)
