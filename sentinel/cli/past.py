"""The commands about what runs have left behind; nothing here touches a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sentinel.cli.options import RUNS, ColumnOption, ConfigDir, Json, RunOption
from sentinel.vocabulary.errors import ConfigError

__all__ = ["PAST"]

By = Literal["step", "tokens"]


def correlate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="What `replay` reads; without it, the run that --run names.")
    ] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    column: ColumnOption = None,
    attempt: Annotated[
        int | None, typer.Option(help="Only this attempt and what it descends from; default is all that were made.")
    ] = None,
    lags: Annotated[bool, typer.Option("--lags", help="Every lag, not only 0 and the one that stands out.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Each layer's variance too, where the run's hook has measured it.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw it, .png or .svg: by lag, as a scatter, and the paper's Figure 1(g, h).")
    ] = None,
    incident: Annotated[
        str | None, typer.Option(help="Instead: what moved first before this incident's onset.")
    ] = None,
    around: Annotated[int | None, typer.Option(help="Instead: what moved first before this step.")] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Steps before the onset that --incident and --around look at.")
    ] = 100,
    as_json: Json = False,
) -> int:
    """Correlate the loss ratio with Adam's variance, as the paper's Table 3, and say how far to trust it.

    Beside the plain coefficients stand prewhitened ones, at lags of up to 200 samples to either side (positive: the
    signal is earlier than the loss ratio), with the effective sample size, corrected for the number of tests.
    """
    from sentinel.cli import correlating, replaying
    from sentinel.daemon import wiring

    if incident is not None and (around is not None or paths):
        raise ConfigError("--incident names an onset of a run's; give no --around and no path with it")
    if paths and run is not None:
        raise ConfigError("paths or --run: give one of them")
    if layers and (paths or incident is not None or around is not None):
        raise ConfigError("--layers goes with the table of a run: give no path, --incident or --around with it")
    shown = correlating.Shown(every_lag=lags, layers=layers, plot=plot, as_json=as_json)
    columns = replaying.parsed_columns(column or ())
    if paths and around is not None:
        return correlating.moved_first_in_paths(
            paths, columns, around, window_steps=window, attempt=attempt, as_json=as_json
        )
    if paths:
        return correlating.correlate_paths(paths, columns, shown, attempt=attempt)
    config = wiring.find_config(run, config_dir)
    if incident is not None or around is not None:
        onset = correlating.Around(incident=incident, step=around, window_steps=window)
        return correlating.moved_first(config, onset, attempt=attempt, as_json=as_json)
    return correlating.correlate_run(config, shown, attempt=attempt)


def replay(
    paths: Annotated[list[Path], typer.Argument(help="Journals, state folders, logs, tables, TensorBoard folders.")],
    column: ColumnOption = None,
    planned: Annotated[
        list[int] | None, typer.Option("--planned", help="A step at which something was changed on purpose; repeat it.")
    ] = None,
    reference: Annotated[
        list[Path] | None, typer.Option("--reference", help="A run that this one should not be slower than; repeat it.")
    ] = None,
    still_running: Annotated[
        bool, typer.Option("--still-running", help="The last episode may still heal: more samples will come.")
    ] = False,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Judge what a run has left behind, sample for sample as it would have been live. Exit 1 when one ends diverged.

    With --run, by that run's \\[judge] and \\[policy], with what it plans and its references; else by the defaults.
    """
    from sentinel.cli import replaying
    from sentinel.daemon import wiring
    from sentinel.judge.thresholds import Thresholds
    from sentinel.plan.policy import Policy

    config = wiring.find_config(run, config_dir) if run is not None else None
    asked = replaying.Asked(
        columns=replaying.parsed_columns(column or ()),
        planned=(*(planned or ()), *(config.run.planned_steps if config is not None else ())),
        references=(*(reference or ()), *(config.run.reference if config is not None else ())),
        still_running=still_running,
        thresholds=config.judge if config is not None else Thresholds(),
        policy=config.policy if config is not None else Policy(),
    )
    return replaying.replay_paths(paths, asked, as_json=as_json)


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The table: .csv, .parquet or .jsonl.")],
    path: Annotated[
        str | None, typer.Argument(help="What `replay` reads; without it, the run that --run names.")
    ] = None,
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    column: ColumnOption = None,
    descent: Annotated[
        bool, typer.Option("--descent", help="Without what a restart took back: each step once, as it counts.")
    ] = False,
) -> int:
    """Write a run's samples as a table: one row for each step of each attempt, in sentinel's names.

    nan is nan; what was not measured is null, in CSV a blank. `sentinel replay` reads it again.
    """
    from sentinel.cli import exporting, replaying
    from sentinel.daemon import readings, wiring

    if path is not None and run is not None:
        raise ConfigError("a path or --run: give one of them")
    columns = replaying.parsed_columns(column or ())
    if path is not None:
        source = readings.source_named(path, columns, config_dir)
    else:
        source = readings.source_of_run(wiring.find_config(run, config_dir))
    return exporting.export(source, output, only_descent=descent)


def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more: what `replay` reads, or names as --run takes them.")],
    by: Annotated[By, typer.Option(help="What the runs are compared at: step or tokens consumed.")] = "step",
    column: ColumnOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it, .png or .svg.")] = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Compare runs at the same step: the smoothed loss of each, the ratio to the first, and who leads since when."""
    from sentinel.cli import comparing, replaying

    columns = replaying.parsed_columns(column or ())
    return comparing.compare_runs(runs, columns, config_dir, by=by, plot=plot, as_json=as_json)


Texts = Annotated[
    Path | None, typer.Option(help='The samples\' texts: JSON lines of {"position", "text"}; see docs/TRIAGE.md.')
]


def triage(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page, one HTML file.")] = Path("triage.html"),
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    incident: Annotated[str | None, typer.Option(help="The one that is shown first; default is the last.")] = None,
    texts: Texts = None,
) -> int:
    """Write one page on which the run is understood: what broke, what led, what was done, and whether it helped.

    It is a file of its own: nothing is fetched when it is opened, and it can be mailed.
    """
    from sentinel.cli import triaging
    from sentinel.daemon import wiring

    config = wiring.find_config(run, config_dir)
    typed = triaging.typed(run, config_dir, RUNS, config)
    return triaging.triage(config, output, incident=incident, texts=texts, typed=typed)


def ui(
    run: RunOption = None,
    config_dir: ConfigDir = RUNS,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine a token is asked for.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8650,
    token_file: Annotated[
        Path | None, typer.Option(help="The token to ask for; without it, one is made up where one is needed.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file with the certificate and its chain: HTTPS, and nothing else.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file with its key, where it is not in the same file.")] = None,
    texts: Texts = None,
) -> int:
    """Serve the same page live, in a browser on this machine. It shows the command to type, and never acts."""
    from sentinel.cli import triaging
    from sentinel.daemon import wiring

    config = wiring.find_config(run, config_dir)
    typed = triaging.typed(run, config_dir, RUNS, config)
    tls = triaging.certificate_of(certificate, key)
    return triaging.ui(config, (host, port), token_file=token_file, certificate=tls, texts=texts, typed=typed)


PAST = (replay, correlate, compare, export, triage, ui)
