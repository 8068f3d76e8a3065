"""`sentinel tune slw`: searches a run's sequence length warmup by short real runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from sentinel import bounded
from sentinel.cli.options import RUNS, ConfigDir, Json, Run
from sentinel.cli.output import print_json
from sentinel.daemon.run_files import clock, find_config, state_dir_of
from sentinel.durable import os_errors_named, write_atomically
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunStarted

if TYPE_CHECKING:
    from sentinel.act.source import Source
    from sentinel.config import Config
    from sentinel.config import Launcher as Settings
    from sentinel.jobscript.facts import Facts
    from sentinel.jobscript.reading import Read
    from sentinel.tune.command import Folders
    from sentinel.tune.record import Life
    from sentinel.tune.report import Report
    from sentinel.tune.search import Task
    from sentinel.tune.tuner import Probe

__all__ = ["search", "tune"]


def tune(
    what: Annotated[  # noqa: ARG001 - there is one so far, and the command line is an interface
        Literal["slw"], typer.Argument(help="slw: the start and the duration of sequence length warmup.")
    ],
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Probes that may run at once; default: \\[tune] parallel.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the probes and the plot; default: STATE_DIR/tune-slw.")
    ] = None,
    as_json: Json = False,
) -> int:
    """An interrupted search is resumed by the same command: finished probes are not run again."""
    from sentinel.tune.picture import draw

    config = find_config(run, config_dir)
    console = Console(stderr=True, highlight=False, width=120)
    folder = (output or state_dir_of(config) / "tune-slw").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the probes are stopped
    report = search(config, folder, parallel=parallel, say=lambda line: console.print(line, markup=False))
    draw(report)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    return 0 if report.chosen else 1


def search(config: Config, folder: Path, *, parallel: int | None, say: Callable[[str], None]) -> Report:
    """Searches in the folder, from the probes that are finished there to the end."""
    from sentinel.adapters.incident_log import IncidentLog
    from sentinel.adapters.lock import RunLock
    from sentinel.tune.record import Record
    from sentinel.tune.report import report_of
    from sentinel.tune.search import task_of
    from sentinel.tune.tuner import Tuner

    text, facts = _facts(config)
    task = task_of(config.tune, facts)
    with os_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder):
        record = Record(IncidentLog(folder / "probes.jsonl", check=dict), task)
        tuner = Tuner(
            task,
            record,
            lambda life: _probe(config, task, facts, text, life, folder / life.name),
            parallel=parallel or config.tune.parallel,
            poll_interval_s=min(config.watch.poll_interval_s, 5.0),
            say=say,
            clock=clock,
            sleep=time.sleep,
        )
        decision = tuner.run()
    return report_of(config.run.name, task, decision, record.lives, folder / "tune-slw.png")


def _facts(config: Config) -> tuple[str, Facts]:
    """The run's job script ("" where it is a command), and the settings found in the script or the command."""
    from sentinel.jobscript.reading import read_command, read_text

    launcher = config.launcher
    if launcher.kind == "elsewhere":
        raise ConfigError("[launcher] kind is 'elsewhere': sentinel does not know how to start a probe")
    if launcher.kind == "local":
        if not launcher.command:
            raise ConfigError("[launcher] command is empty: sentinel does not know how to start a probe")
        read = read_command(launcher.command, config.run.name)
        _refuse_unshortened(config, read, "[launcher] command")
        return "", read.facts
    if launcher.script is None:
        raise ConfigError("[launcher] script is not set: sentinel does not know what to submit for a probe")
    try:
        text = bounded.read_text(launcher.script, errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"{launcher.script}: {error.strerror}") from error
    read = read_text(text, config.run.name)
    _refuse_unshortened(config, read, str(launcher.script))
    return text, read.facts


def _refuse_unshortened(config: Config, read: Read, where: str) -> None:
    """ConfigError where the trainer would ignore the sequence lengths, so that every probe trains at full length."""
    from sentinel.tune.command import OWN_TRAINER

    if read.program == OWN_TRAINER or _has_shortened(config):
        return
    if read.format == "not understood":
        raise ConfigError(
            f"{where}: {read.program} can't be shortened: it takes no options that sentinel knows, and no attempt of "
            "the run has reported a seqlen_schedule; see docs/TUNING.md for the trainers that can"
        )
    if not config.launcher.changes_in_script:
        raise ConfigError(
            f"{where}: {read.program} takes its sequence lengths from options, and sentinel may not change them: "
            '[launcher] kind = "slurm" with changes_in_script = true lets it'
        )


def _has_shortened(config: Config) -> bool:
    """Whether an attempt of the run has reported a sequence length schedule."""
    from sentinel.adapters.journal import Journals

    records = Journals(state_dir_of(config)).poll() if config.source.kind == "journal" else []
    return any(isinstance(r, RunStarted) and r.seqlen_schedule is not None for r in records)


def _probe(config: Config, task: Task, facts: Facts, text: str, life: Life, folder: Path) -> Probe:
    """One life of a probe: the run's launcher, with folders of its own."""
    from sentinel.daemon.wiring import launcher_of
    from sentinel.tune.command import Folders, command_of
    from sentinel.tune.tuner import LOG, Probe

    settings, run = config.launcher, config.run
    moved = {run.checkpoints: folder / "checkpoints", state_dir_of(config): folder}
    if run.tensorboard is not None:
        moved[run.tensorboard] = folder / "tensorboard"
    folders = Folders(working_directory=settings.working_directory.resolve(), moved=moved)
    if settings.kind == "local":
        options = _options(config, task, facts, folder, settings.command)
        settings = replace(settings, command=command_of(settings.command, folders, options))
    else:
        settings = _with_script(config, task, facts, text, folders, life, folder)
    own = replace(config, run=replace(run, state_dir=folder), launcher=replace(settings, log=folder / LOG))
    return Probe(life, folder, launcher_of(own, folder, folder / LOG), _source(config, folder, folder / LOG), task)


def _options(config: Config, task: Task, facts: Facts, folder: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    from sentinel.tune.command import OWN_TRAINER, options_for_own_trainer

    if OWN_TRAINER not in words:
        return config.tune.options
    tensorboard = any(word.partition("=")[0] == "--tensorboard" for word in words)
    return (*options_for_own_trainer(task, facts, folder, tensorboard=tensorboard), *config.tune.options)


def _with_script(
    config: Config, task: Task, facts: Facts, text: str, folders: Folders, life: Life, folder: Path
) -> Settings:
    """Slurm's settings of the probe; writes its job script."""
    from sentinel.jobscript.given import given
    from sentinel.tune.command import script_of
    from sentinel.tune.tuner import LOG

    found = given(text)
    words = (found.program, *(option.flag for option in found.options))
    overrides = task.overrides(life.pacing) if config.launcher.changes_in_script else None
    script = folder / "job.sh"
    with os_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    made = script_of(text, folders, _options(config, task, facts, folder, words), overrides)
    write_atomically(script, made.encode("utf-8", "surrogateescape"))
    arguments = (*config.launcher.sbatch_arguments, f"--output={folder / LOG}", f"--job-name=tune-{life.name}")
    return replace(config.launcher, script=script, job_name=None, changes_in_script=False, sbatch_arguments=arguments)


def _source(config: Config, folder: Path, log: Path) -> Source:
    from sentinel.daemon.sources import source_of

    return source_of(replace(config, source=replace(config.source, path=log)), folder)


def _show(report: Report) -> None:
    """Prints the table, the answer, and its cost."""
    console = Console(highlight=False, width=120)
    console.print(table_of(report))
    console.print(summary_of(report), markup=False)


def table_of(report: Report) -> Table:
    """One row for each life of a probe, in the order of their starts."""
    table = Table(title=f"Probes of {report.run}, horizon {report.task.space.horizon_steps} steps")
    for heading in ("start", "T", "steps", "tokens", "perplexity max / best before", "verdict", "stopped", "seed"):
        table.add_column(heading, justify="left" if heading in ("verdict", "stopped") else "right")
    for row in report.probes:
        ratio = row.max_perplexity_ratio
        table.add_row(
            str(row.start),
            str(row.total_steps),
            str(row.steps),
            f"{row.tokens:,}",
            "—" if ratio is None else f"{ratio:.2f}",
            row.verdict if row.fluctuated_at is None else f"{row.verdict} at step {row.fluctuated_at}",
            _when(row.verdict, row.steps),
            "—" if row.seed is None else str(row.seed),
        )
    return table


def _when(verdict: str, steps: int) -> str:
    why = {"fluctuates": "when it fluctuated", "calm": "at the horizon", "not needed": "another probe had decided"}
    return f"{why.get(verdict, 'its trainer had ended')}, step {steps}"


def summary_of(report: Report) -> str:
    """The answer, to be pasted into the run's configuration, and its cost."""
    from sentinel.tune.report import deepspeed_block, ladder_rung

    task, chosen = report.task, report.chosen
    share = report.share_of_full_run
    against = f", {share:.1%} of one full run" if share is not None else "; the length of a full run is not known"
    cost = f"{len(report.probes)} probes, {report.steps} steps, {report.tokens:,} tokens{against}. Plot: {report.plot}"
    remark = (
        ""
        if report.monotone
        else "A longer T was calm where a shorter one fluctuated: between them it is chance. Look at the plot.\n"
    )
    if chosen is None:
        return f"No pacing found: {report.reason}.\n{remark}{cost}"
    block = dump_json({"curriculum_learning": deepspeed_block(task, chosen)}, indent=2)
    return (
        f"Start {chosen.start}, T {chosen.total_steps}: {report.reason}.\n{remark}\n"
        f"For the run's TOML:\n\n{ladder_rung(chosen)}\n"
        f"For a DeepSpeed JSON (up to 0.19.7, and Megatron-DeepSpeed):\n\n{block}\n\n{cost}"
    )
