"""The commands around a run: what is tried before it, what it is checked by, and where it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sentinel.cli.options import RUNS, ConfigDir, Json, RunOption

__all__ = ["AROUND"]


def demo(
    seed: Annotated[int, typer.Option(help="The run's seed; 0 to 4 were tried.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the run and its picture; it must not hold a run.")] = Path(
        "demo-output"
    ),
    as_json: Json = False,
) -> int:
    """Train a small GPT until it really diverges, and watch sentinel save it. Needs the trainer extra."""
    from sentinel.cli import demonstrating

    return demonstrating.demo(seed=seed, output=output, as_json=as_json)


def tune(
    what: Annotated[  # noqa: ARG001 - there is one so far, and the command line is a promise
        Literal["slw"], typer.Argument(help="slw: the start and the duration of sequence length warmup.")
    ],
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Probes that may run at once; default \\[tune] parallel.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the probes and the plot; default STATE_DIR/tune-slw.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Find a run's pacing by short real runs of its own command, as the paper does by hand. Exit 1 when there is none.

    Killed half-way, the same command goes on where it was: finished probes are not run again.
    """
    from sentinel.cli import tuning
    from sentinel.daemon import wiring

    return tuning.tune_slw(wiring.find_config(run, config_dir), output=output, parallel=parallel, as_json=as_json)


def dashboards(
    what: Annotated[
        Literal["push", "diff", "export"],
        typer.Argument(help="push: to a Grafana; diff: what a push would change; export: into a folder."),
    ],
    url: Annotated[str | None, typer.Option(envvar="GRAFANA_URL", help="Grafana's address.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the service account's token; without it, GRAFANA_TOKEN does.")
    ] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Certificates to trust in place of the usual ones.")] = None,
    datasource: Annotated[
        str | None, typer.Option(help="uid of the Prometheus to ask; default is Grafana's default one.")
    ] = None,
    folder: Annotated[str, typer.Option(help="The folder's title in Grafana.")] = "Sentinel",
    pages: Annotated[
        str | None, typer.Option(help="Where sentinel's own pages are served; without it no link leads there.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one try of one request; there are three.")] = 10,
    output: Annotated[Path, typer.Option("--output", "-o", help="export: the folder.")] = Path("grafana"),
    run: Annotated[
        str | None, typer.Option("--run", help="push: also mark this run's onsets, alarms, rollbacks and recoveries.")
    ] = None,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="push: to W&B instead: --run's incidents, drawn over its loss there.")
    ] = False,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Bring the dashboards to a Grafana. Exit 3 when it can't be reached; diff: 1 when a push would change something.

    The token is never an option: it would stand in the list of processes.
    """
    from sentinel.cli import dashboarding, wandb_drawing
    from sentinel.daemon import wiring
    from sentinel.vocabulary.errors import ConfigError

    if wandb:
        if what != "push" or run is None:
            raise ConfigError("--wandb goes with push and --run: what is drawn in W&B is a run's incidents")
        return wandb_drawing.push(wiring.find_config(run, config_dir), as_json=as_json)
    aim = dashboarding.Aim(
        url=url,
        token_file=token_file,
        ca_file=ca_file,
        datasource=datasource,
        folder=folder,
        pages=pages,
        timeout_s=timeout,
    )
    if what == "export":
        return dashboarding.export(aim, output, as_json=as_json)
    if what == "diff":
        return dashboarding.diff(aim, as_json=as_json)
    return dashboarding.push(aim, wiring.find_config(run, config_dir) if run else None, as_json=as_json)


def lint(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Job scripts, Megatron logs, DeepSpeed JSONs; default is the run's own.")
    ] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    parameters: Annotated[str | None, typer.Option(help="How many there should be, e.g. 104B.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Of all nodes together.")] = None,
    step_time: Annotated[float | None, typer.Option(help="Seconds of a step at full batch.")] = None,
    save_time: Annotated[float | None, typer.Option(help="Seconds for which a save holds the training up.")] = None,
    failures_per_day: Annotated[float | None, typer.Option(help="Of all nodes together.")] = None,
    consumed_samples: Annotated[int | None, typer.Option(help="Where the run resumes; default is its start.")] = None,
    as_json: Json = False,
) -> int:
    """Check shape, batches, schedules, SLW and saves by formula before a run starts. Exit 1 when there is an error."""
    from sentinel.cli import linting
    from sentinel.daemon import wiring
    from sentinel.jobscript.facts import Facts
    from sentinel.jobscript.numbers_in_words import declared_size

    told = Facts(
        declared_parameters=None if parameters is None else declared_size(parameters),
        world_size=gpus,
        step_time_s=step_time,
        save_time_s=save_time,
        node_failures_per_day=failures_per_day,
        consumed_samples=consumed_samples,
    )
    if paths:
        return linting.lint_paths(paths, told, as_json=as_json)
    return linting.lint_run(wiring.find_config(run, config_dir), told, as_json=as_json)


AROUND = (demo, tune, dashboards, lint)
"""In the order that the help shows them in."""
