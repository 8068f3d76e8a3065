"""`sentinel tune`: searches the start and the duration of a run's warmup by short real runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sentinel.adapters.journal import Journals
from sentinel.adapters.lock import RunLock
from sentinel.cli.shared import RUNS, ConfigDir, Json, Run, print_json, table
from sentinel.config import Bisect, Config
from sentinel.config.run_files import find_config, state_dir_of
from sentinel.daemon.probes import probe_jobs, started_from
from sentinel.durable import os_errors_named
from sentinel.jobscript.reading import Read, read_command, read_text
from sentinel.jobscript.script_changes import baseline_of_script
from sentinel.lab.probes.command import OWN_TRAINER
from sentinel.lab.probes.probe import Probe
from sentinel.lab.tune.report import BLOCK, Report, deepspeed_block, ladder_rung, report_of, trainer_options
from sentinel.lab.tune.search import Pacing
from sentinel.lab.tune.task import SETTING, UNIT, What, task_of
from sentinel.lab.tune.tuner import Tuner
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import RunStarted
from sentinel.vocabulary.texts import neutral
from sentinel.vocabulary.training_settings import settings_of


def tune(
    what: Annotated[
        What,
        typer.Argument(
            help="slw: sequence length warmup; voc: curriculum by vocabulary rarity (d_s, T); random-ltd: r_s, T_r."
        ),
    ],
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Probes that may run at once; default: \\[tune] parallel.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the probes and the plot; default: STATE_DIR/tune-WHAT.")
    ] = None,
    as_json: Json = False,
) -> int:
    """An interrupted search is resumed by the same command: finished probes are not run again."""
    from sentinel.reports.tuning import draw

    config = find_config(run, config_dir)
    console = Console(stderr=True, highlight=False, width=120)
    folder = (output or state_dir_of(config) / f"tune-{what}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the probes are stopped
    report = search(
        config, folder, what, parallel=parallel, say=lambda line: console.print(neutral(line), markup=False)
    )
    draw(report)
    if as_json:
        print_json(report.to_json())
    else:
        console = Console(highlight=False, width=120)
        console.print(table_of(report))
        console.print(neutral(summary_of(report)), markup=False)
    return 0 if report.chosen else 1


def search(
    config: Config, folder: Path, what: What = "slw", *, parallel: int | None, say: Callable[[str], None]
) -> Report:
    in_script, name = config.launcher.changes_in_script and what == "slw", config.run.name
    launcher, checkpoints = replace(config.launcher, changes_in_script=in_script), config.run.checkpoints
    text, _ = started_from(replace(config, bisect=Bisect()))
    read = read_text(text, name) if text else read_command(launcher.command, name)
    _refuse_unpaced(config, read, str(launcher.script or "the job script") if text else "[launcher] command", what)
    task = task_of(config.tune, read.facts, what)
    own = (f"--validate-every={task.validate_every}",) if read.program == OWN_TRAINER else ()
    given, options = config.bisect, (*own, *config.tune.options)
    settings = Bisect(options=options, inputs=given.inputs, writable=given.writable)

    def probe_of(pacing: Pacing) -> Probe:
        overrides = task.overrides_in_script(pacing, baseline_of_script(text)) if in_script else None
        return task.probe(pacing, overrides)

    jobs = probe_jobs(replace(config, launcher=launcher, bisect=settings), "[tune]")
    with os_errors_named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder, does=f"tunes {name}"):
        tuner = Tuner(task, folder, checkpoints, probe_of, jobs, say, parallel=parallel or config.tune.parallel)
        decision = tuner.run(poll_interval_s=min(config.watch.poll_interval_s, 5.0))
    return report_of(config.run.name, task, decision, tuner.lives, folder / f"tune-{what}.png")


def _refuse_unpaced(config: Config, read: Read, where: str, what: What) -> None:
    """ConfigError where the trainer would ignore the pacing, so that every probe trains as the run does."""
    if read.program == OWN_TRAINER:
        return
    setting = settings_of()[SETTING[what]]
    records = Journals(state_dir_of(config)).poll() if config.source.kind == "journal" else []
    if any(isinstance(r, RunStarted) and getattr(r, setting.reported_as) is not None for r in records):
        return
    if what != "slw":
        raise ConfigError(
            f"{where}: sentinel can't change the {setting.words} of {read.program}: no attempt of the run has reported "
            f"a {setting.reported_as}; see docs/TUNING.md for the trainers that can"
        )
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


_STOPPED = {"fluctuates": "when it fluctuated", "calm": "at the horizon", "not needed": "another probe had decided"}


def table_of(report: Report) -> Table:
    start = f"start, {UNIT[report.task.what]}"
    heads = (start, "T", "steps", "tokens", "perplexity max / best before", "verdict", "stopped", "seed")
    rows = [
        (
            str(row.start),
            str(row.total_steps),
            str(row.steps),
            f"{row.tokens:,}",
            "—" if (ratio := row.max_perplexity_ratio) is None else f"{ratio:.2f}",
            row.verdict if row.fluctuated_at is None else f"{row.verdict} at step {row.fluctuated_at}",
            f"{_STOPPED.get(row.verdict, 'its trainer had ended')}, step {row.steps}",
            "—" if row.seed is None else str(row.seed),
        )
        for row in report.probes
    ]
    title = f"Probes of {report.run}, horizon {report.task.space.horizon_steps} steps"
    return table(title, heads, rows, left=("verdict", "stopped"))


def summary_of(report: Report) -> str:
    """The answer, to be pasted into the run's configuration, and its cost."""
    task, chosen = report.task, report.chosen
    share = report.share_of_full_run
    against = f", {share:.1%} of one full run" if share is not None else "; the length of a full run is not known"
    cost = f"{len(report.probes)} probes, {report.steps} steps, {report.tokens:,} tokens{against}. Plot: {report.plot}"
    remark = (
        ""
        if report.monotone
        else "A longer T did not fluctuate where a shorter one did: between them it is chance. Look at the plot.\n"
    )
    if chosen is None:
        return f"No pacing found: {report.reason}.\n{remark}{cost}"
    block = dump_json({BLOCK[task.what]: deepspeed_block(task, chosen)}, indent=2)
    taken_by = "up to 0.19.7, and Megatron-DeepSpeed" if task.what == "slw" else "what was tuned; the rest is the run's"
    return (
        f"Start {chosen.start} {UNIT[task.what]}, T {chosen.total_steps}: {report.reason}.\n{remark}\n"
        f"For the run's TOML:\n\n{ladder_rung(task, chosen)}\n"
        f"For a new run of the reference trainer:\n\n{trainer_options(task, chosen)}\n\n"
        f"For a DeepSpeed JSON ({taken_by}):\n\n{block}\n\n{cost}"
    )
