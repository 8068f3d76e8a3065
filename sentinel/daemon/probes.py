"""A probe's launcher and source: the run's own trainer, with the probe's folders in place of the run's; and the probes
of an incident's bisect, as the run's configuration says."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sentinel import bounded
from sentinel.act.neighbours import Launcher
from sentinel.act.source import Source
from sentinel.adapters.read_only import command_through
from sentinel.adapters.slurm import SlurmClient
from sentinel.adapters.slurm.client import OUR_VARIABLES
from sentinel.adapters.slurm.records import JobRecords
from sentinel.adapters.slurm.trainer_files import scheduler_of
from sentinel.config import BisectSettings, Config, LauncherSettings
from sentinel.config.run_files import bisect_folder, incident_log_of, state_dir_of
from sentinel.daemon.launchers import launcher_of
from sentinel.daemon.sources import source_of
from sentinel.durable import make_folders, os_errors_named, write_atomically
from sentinel.jobscript.facts import ScriptFacts
from sentinel.jobscript.given import given
from sentinel.jobscript.probe_script import behind, first_task, has_error_file
from sentinel.jobscript.reading import read_command, read_text
from sentinel.judge.history import History
from sentinel.lab.bisect.bisect import Bisect, question_about
from sentinel.lab.bisect.question import Means
from sentinel.lab.probes.at_work import LOG, ProbeJob
from sentinel.lab.probes.command import (
    OWN_TRAINER,
    Folders,
    command_of,
    own_trainer_options,
    refuse_the_runs,
    script_lines,
    script_of,
)
from sentinel.lab.probes.probe import Limits, Probe
from sentinel.lint import KnownSettings
from sentinel.plan.facts import Facts
from sentinel.plan.incident.incident import Incident
from sentinel.plan.starts.audit import audits_of
from sentinel.vocabulary.errors import ConfigError, NoProbeError, SlurmUnavailable
from sentinel.vocabulary.sample import RunStarted

ERRORS = "job.err"  # In a probe's folder, where the run's script has its errors in a file of their own
_OF_SBATCH = re.compile(r"(--output|--error)(=|$)|-[oe]")  # replaced by a probe's own
_NO_WANDB = {"WANDB_MODE": "disabled"}  # a probe's steps are not the run's


def started_from(config: Config) -> tuple[str, ScriptFacts]:
    """The run's job script ("" where it is a command), and the settings found in the script or the command.
    NoProbeError where sentinel does not know how to start a probe."""
    launcher = config.launcher
    if launcher.kind in ("elsewhere", "commands"):
        raise NoProbeError(f"[launcher] kind is {launcher.kind!r}: sentinel does not know how to start a probe")
    if launcher.kind == "local":
        words = config.bisect.command or launcher.command
        if not words:
            raise NoProbeError("[launcher] command is empty: sentinel does not know how to start a probe")
        return "", read_command(words, config.run.name).facts if OWN_TRAINER in words else ScriptFacts()
    text = _script(config)
    return text, read_text(text, config.run.name).facts


def _script(config: Config) -> str:
    """As configured, else as Slurm has spooled the run's newest job."""
    if config.launcher.script is not None:
        with os_errors_named(config.launcher.script):
            return bounded.read_text(config.launcher.script, errors="surrogateescape")
    records = JobRecords(state_dir_of(config) / "jobs")
    if (newest := records.newest()) is None:
        raise NoProbeError("[launcher] script is not set: sentinel does not know what to submit for a probe")
    return records.script(newest)


def probe_jobs(config: Config, table: str = "[bisect]") -> Callable[[Probe, Path], ProbeJob]:
    """Makes the job of a probe in a folder, as `[bisect]` says. ConfigError; its errors name `table`'s options."""
    if config.source.kind == "prometheus":
        raise NoProbeError("[source] kind is 'prometheus': a probe's readings can't be seen; use journal or log")
    text, facts = started_from(config)

    def job(probe: Probe, folder: Path) -> ProbeJob:
        folder = folder.resolve()
        return ProbeJob(folder, *_neighbours(config, probe, _folders_of(config, folder, table), folder, text, facts))

    return job


def _folders_of(config: Config, folder: Path, table: str) -> Folders:
    """Where a probe in this folder keeps what the run keeps elsewhere."""
    run = config.run
    moved = {run.checkpoints: folder / "checkpoints", state_dir_of(config): folder}
    if run.tensorboard is not None:
        moved[run.tensorboard] = folder / "tensorboard"
    working = config.launcher.working_directory.resolve()
    if (wandb := os.environ.get("WANDB_DIR")) and (working / wandb).resolve() != working:
        moved[Path(wandb)] = folder / "wandb"
    logs = tuple(log for log in (config.launcher.log, config.source.path) if log is not None)
    return Folders(working_directory=working, moved=moved, table=table, inputs=config.bisect.inputs, others=logs)


def _neighbours(
    config: Config, probe: Probe, folders: Folders, folder: Path, text: str, facts: ScriptFacts
) -> tuple[Launcher, Source]:
    """The launcher and the source of a probe; writes its job script, where it has one."""
    settings, launcher, log = config.bisect, config.launcher, folder / LOG
    places = {
        "checkpoints": str(folder / "checkpoints"),
        "state": str(folder),
        "tensorboard": str(folder / "tensorboard"),
        "until_step": str(probe.until_step),
        "name": probe.name,
    }
    variables = tuple(_filled(variable, places) for variable in settings.environment)

    def options(words: Sequence[str]) -> Sequence[str]:
        added = [_filled(option, places) for option in (*settings.options, *probe.options)]
        if OWN_TRAINER not in words:
            return added
        tensorboard = any(word.partition("=")[0] == "--tensorboard" for word in words)
        return (*own_trainer_options(folder, facts, until_step=probe.until_step, tensorboard=tensorboard), *added)

    if launcher.kind == "local":
        words = tuple(_filled(word, places) for word in settings.command)
        for word in words:
            if folders.own_word(word) != word:
                raise ConfigError(
                    f"[bisect] command names {word!r}, a folder of the run: use {{checkpoints}} or {{state}}"
                )
        words = words or launcher.command
        values = [variable.partition("=")[2] for variable in variables]
        words = command_of(words, folders, options(words), values)
        launcher = replace(launcher, command=(*_read_only(folders, folder, settings), *words))
        looked_at, where = words, "[bisect] command" if settings.command else "[launcher] command"
    else:
        launcher, looked_at = _submitting(config, probe, folders, folder, text, options)
        where = "the job script"
    working = str(folders.working_directory)
    of_probes = {"WANDB_DIR": str(folder), "PWD": working, "OLDPWD": working}
    environment = {**_NO_WANDB, **of_probes, **_moved(folders), **_environment(variables, probe, places)}
    inherited = {k: v for k, v in os.environ.items() if launcher.kind == "local" or not OUR_VARIABLES.match(k)}
    state = {"SENTINEL_STATE_DIR": str(folder)}
    refuse_the_runs(folders.guard(folder), looked_at, {**inherited, **state, **environment}, where, folders.table)
    own = replace(config, run=replace(config.run, state_dir=folder), launcher=replace(launcher, log=log))
    source = source_of(replace(own, source=replace(config.source, path=log)), folder)
    return launcher_of(own, folder, log, environment=lambda: environment), source


def _read_only(folders: Folders, folder: Path, settings: BisectSettings) -> tuple[str, ...]:
    """What a probe's command is put behind, so that it can't write to the run's folders."""
    wandb = folders.working_directory / "wandb"
    return command_through(folder, (*folders.moved, *folders.others, wandb), settings.writable)


def _submitting(
    config: Config,
    probe: Probe,
    folders: Folders,
    folder: Path,
    text: str,
    options: Callable[[Sequence[str]], Sequence[str]],
) -> tuple[LauncherSettings, tuple[str, ...]]:
    """The run's [launcher] with the probe's own job script, which it writes; and all in it that may name a folder."""
    launcher, script, found = config.launcher, folder / "job.sh", given(text)
    words = (found.program, *(option.flag for option in found.options))
    overrides = probe.overrides if launcher.changes_in_script else None
    scheduler = scheduler_of(text, folders.working_directory, launcher.scheduler_override)
    made = script_of(text, folders, options(words), overrides, KnownSettings(scheduler=scheduler))
    looked_at = (*script_lines(made), *launcher.sbatch_arguments)
    made = behind(made, _read_only(folders, folder, config.bisect))
    make_folders(folder)
    write_atomically(script, made.encode("utf-8", "surrogateescape"))
    name = f"probe-{config.run.name}-{probe.name}"[:200]
    arguments = [f"--output={folder / LOG}", f"--job-name={name}"]
    arguments += [f"--nodes={config.bisect.nodes}"] if config.bisect.nodes is not None else []
    arguments += [f"--exclude={','.join(probe.exclude_nodes)}"] if probe.exclude_nodes else []
    asked = launcher.sbatch_arguments
    arguments += [f"--error={folder / ERRORS}"] if has_error_file(text, asked) else []
    task = first_task(text, asked)  # a probe is one task, of an array too
    arguments += [f"--array={task}"] if task is not None else []
    every = (*asked, *arguments)
    own = replace(launcher, script=script, job_name=None, changes_in_script=False, sbatch_arguments=every)
    return own, tuple(word for word in looked_at if not _OF_SBATCH.match(word))


def bisect_about(
    config: Config,
    incident: Incident,
    history: History,
    facts: Facts,
    started: Sequence[RunStarted],
    say: Callable[[str], None],
    gpu_hours: float | None = None,
) -> Bisect:
    """ConfigError where there is nothing to repeat, or no probe can be run from here. `gpu_hours`: what its probes may
    take beside what `[bisect]` says; None is no limit."""
    settings, begun = config.bisect, next((one for one in started if one.attempt == incident.attempt), None)
    other = dict(variable.split("=", 1) for variable in settings.other_node_environment)
    means = Means(
        window_steps=settings.window_steps,
        fp32_options=settings.fp32_options,
        other_node_environment=other or None,
        nodes=nodes_of(config, begun),
    )
    audits = audits_of(tuple(incident_log_of(config).read()))
    question = question_about(incident, history, facts, config.judge, config.policy, means, audits)
    hours = (settings.gpu_hours, gpu_hours)
    limits = Limits(
        parallel=settings.parallel,
        gpu_hours=min((left for left in hours if left is not None), default=None),
        probe_s=3600 * settings.probe_hours,
        count=settings.max_probes,
    )
    folder = bisect_folder(config) / incident.id
    return Bisect(question, folder, config.run.checkpoints, probe_jobs(config), limits, say)


def nodes_of(config: Config, started: RunStarted | None) -> tuple[str, ...]:
    """Slurm's nodes of an attempt, as `--exclude` takes them: of its whole job while Slurm remembers it, else the host
    of its first rank; () where it is not known, or there is no Slurm."""
    if config.launcher.kind != "slurm" or started is None:
        return ()
    host = (started.host,) if started.host else ()
    if started.job_id is None:
        return host
    client = SlurmClient(user=config.launcher.user, timeout_s=config.launcher.slurm_timeout_s)
    with contextlib.suppress(SlurmUnavailable):
        jobs = client.jobs_by_id([started.job_id.partition("_")[0]])
        return tuple(job.nodes for job in jobs if job.nodes and started.job_id in (job.id, job.shown)) or host
    return host


def _filled(text: str, places: Mapping[str, str]) -> str:
    """By replacement, not by format: other braces are the trainer's."""
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _environment(variables: Sequence[str], probe: Probe, places: Mapping[str, str]) -> dict[str, str]:
    ours = {"": probe.name, "_CHECKPOINTS": places["checkpoints"], "_UNTIL_STEP": places["until_step"]}
    named = {f"SENTINEL_PROBE{name}": value for name, value in ours.items()}
    return {**named, **dict(variable.split("=", 1) for variable in variables), **probe.environment}


def _moved(folders: Folders) -> dict[str, str]:
    """The variables that a trainer inherits and that name a folder of the run, with the probe's instead."""
    found = {name: folders.stand_in(value) for name, value in os.environ.items() if value.startswith("/")}
    return {name: own for name, own in found.items() if own is not None and name not in ("HOME", "PWD", "OLDPWD")}
