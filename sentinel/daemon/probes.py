"""A probe's launcher and source: the run's own trainer, with the probe's folders in place of the run's."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sentinel import bounded
from sentinel.act.neighbours import Launcher
from sentinel.act.probe_command import OWN_TRAINER, Folders, command_of, own_trainer_options, script_of
from sentinel.act.probes import LOG, ProbeJob
from sentinel.act.source import Source
from sentinel.adapters.slurm import SlurmClient
from sentinel.adapters.slurm.records import JobRecords
from sentinel.adapters.slurm.trainer_files import scheduler_of
from sentinel.config import Config
from sentinel.daemon.run_files import state_dir_of
from sentinel.daemon.sources import source_of
from sentinel.daemon.wiring import launcher_of
from sentinel.durable import make_folders, os_errors_named, write_atomically
from sentinel.jobscript.facts import Facts
from sentinel.jobscript.given import given
from sentinel.jobscript.reading import read_command, read_text
from sentinel.lint import Known
from sentinel.plan.probe import Probe
from sentinel.vocabulary.errors import ConfigError, SlurmUnavailable
from sentinel.vocabulary.overrides import Overrides
from sentinel.vocabulary.sample import RunStarted

_NO_WANDB = {"WANDB_MODE": "disabled"}  # a probe's steps are not the run's


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """How the trainer of one probe differs from the run's."""

    name: str  # of its job
    folders: Folders
    options: Callable[[Sequence[str]], Sequence[str]]  # by the words of the run's command or script
    environment: Mapping[str, str]
    sbatch_arguments: tuple[str, ...] = ()
    overrides: Overrides | None = None  # to be made in the job script, where [launcher] changes_in_script says so
    places_by: tuple[str, ...] = ()  # values of variables by which the trainer may find its folders


def folders_of(config: Config, folder: Path, table: str) -> Folders:
    """Where a probe in this folder keeps what the run keeps elsewhere."""
    run = config.run
    moved = {run.checkpoints: folder / "checkpoints", state_dir_of(config): folder}
    if run.tensorboard is not None:
        moved[run.tensorboard] = folder / "tensorboard"
    return Folders(working_directory=config.launcher.working_directory.resolve(), moved=moved, table=table)


def started_from(config: Config) -> tuple[str, Facts]:
    """The run's job script ("" where it is a command), and the settings found in the script or the command.
    ConfigError where sentinel does not know how to start a probe."""
    launcher = config.launcher
    if launcher.kind == "elsewhere":
        raise ConfigError("[launcher] kind is 'elsewhere': sentinel does not know how to start a probe")
    if launcher.kind == "local":
        words = config.bisect.command or launcher.command
        if not words:
            raise ConfigError("[launcher] command is empty: sentinel does not know how to start a probe")
        return "", read_command(words, config.run.name).facts if OWN_TRAINER in words else Facts()
    text = _script(config)
    return text, read_text(text, config.run.name).facts


def _script(config: Config) -> str:
    """As configured, else as Slurm has spooled the run's newest job."""
    if config.launcher.script is not None:
        with os_errors_named(config.launcher.script):
            return bounded.read_text(config.launcher.script, errors="surrogateescape")
    records = JobRecords(state_dir_of(config) / "jobs")
    if (newest := records.newest()) is None:
        raise ConfigError("[launcher] script is not set: sentinel does not know what to submit for a probe")
    return records.script(newest)


def neighbours_of_probe(config: Config, trainer: Trainer, folder: Path, text: str) -> tuple[Launcher, Source]:
    """The launcher and the source of a probe; writes its job script, where it has one."""
    settings, log = config.launcher, folder / LOG
    if settings.kind == "local":
        words = settings.command
        settings = replace(
            settings, command=command_of(words, trainer.folders, trainer.options(words), trainer.places_by)
        )
    else:
        script = folder / "job.sh"
        make_folders(folder)
        made = _job_script(config, trainer, text)
        write_atomically(script, made.encode("utf-8", "surrogateescape"))
        arguments = (*settings.sbatch_arguments, f"--output={log}", f"--job-name={trainer.name}")
        arguments += trainer.sbatch_arguments
        settings = replace(settings, script=script, job_name=None, changes_in_script=False, sbatch_arguments=arguments)
    own = replace(config, run=replace(config.run, state_dir=folder), launcher=replace(settings, log=log))
    source = source_of(replace(own, source=replace(config.source, path=log)), folder)
    return launcher_of(own, folder, log, environment=lambda: {**_NO_WANDB, **trainer.environment}), source


def _job_script(config: Config, trainer: Trainer, text: str) -> str:
    launcher, found = config.launcher, given(text)
    words = (found.program, *(option.flag for option in found.options))
    overrides = trainer.overrides if launcher.changes_in_script else None
    scheduler = scheduler_of(text, trainer.folders.working_directory, launcher.scheduler_override)
    return script_of(text, trainer.folders, trainer.options(words), overrides, Known(scheduler=scheduler))


def probe_jobs(config: Config) -> Callable[[Probe, Path], ProbeJob]:
    """Makes the job of a probe in a folder, as `[bisect]` says. ConfigError."""
    if config.source.kind == "prometheus":
        raise ConfigError("[source] kind is 'prometheus': a probe's readings can't be seen; use journal or log")
    text, facts = started_from(config)

    def job(probe: Probe, folder: Path) -> ProbeJob:
        settings, folder = config.bisect, folder.resolve()
        folders = folders_of(config, folder, "[bisect]")
        places = {
            "checkpoints": str(folder / "checkpoints"),
            "state": str(folder),
            "tensorboard": str(folder / "tensorboard"),
            "until_step": str(probe.until_step),
            "name": probe.name,
        }

        def options(words: Sequence[str]) -> Sequence[str]:
            added = [_filled(option, places) for option in (*settings.options, *probe.options)]
            if OWN_TRAINER not in words:
                return added
            tensorboard = any(word.partition("=")[0] == "--tensorboard" for word in words)
            until = probe.until_step
            own = own_trainer_options(folder, facts, until_step=until, tensorboard=tensorboard, saves=probe.keeps_saves)
            return (*own, *added)

        given_variables = tuple(_filled(variable, places) for variable in settings.environment)
        trainer = Trainer(
            name=f"probe-{config.run.name}-{probe.name}"[:200],
            folders=folders,
            options=options,
            environment={**_moved(folders), **_environment(given_variables, probe, places)},
            places_by=tuple(variable.partition("=")[2] for variable in given_variables),
            sbatch_arguments=_sbatch(settings.nodes, probe),
            overrides=probe.overrides,
        )
        given_command = tuple(_filled(word, places) for word in settings.command)
        ours = config if not given_command else _with_command(config, given_command, folders)
        return ProbeJob(folder, *neighbours_of_probe(ours, trainer, folder, text))

    return job


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


def _sbatch(nodes: int | None, probe: Probe) -> tuple[str, ...]:
    found = [f"--nodes={nodes}"] if nodes is not None else []
    return (*found, *[f"--exclude={','.join(probe.exclude_nodes)}"] * bool(probe.exclude_nodes))


def _with_command(config: Config, command: tuple[str, ...], folders: Folders) -> Config:
    for word in command:
        if folders.own_word(word) != word:
            raise ConfigError(f"[bisect] command names {word!r}, a folder of the run: use {{checkpoints}} or {{state}}")
    return replace(config, launcher=replace(config.launcher, command=command))
