"""`sentinel correlate`: the paper's Table 3 with its significance, and which signal moved first before an onset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sentinel.cli.incident import incident_named
from sentinel.cli.shared import (
    RUNS,
    Columns,
    ConfigDir,
    Json,
    Run,
    check_picture,
    echo,
    parsed_columns,
    print_json,
    table,
)
from sentinel.config import Config
from sentinel.config.run_files import find_config, incident_log_of
from sentinel.daemon.sources import source_of_run
from sentinel.judge.analysis.correlation.columns import columns_of, layer_columns
from sentinel.judge.analysis.correlation.table import Correlation, Correlations, correlations
from sentinel.judge.analysis.departures import Departure, FirstMoved
from sentinel.judge.analysis.first_mover import WINDOW_STEPS, first_moved_of_readings
from sentinel.judge.readings import Readings
from sentinel.reports.past import Past, read_past
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError


def correlate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Readings as `replay` takes them; default: the run of --run.")
    ] = None,
    run: Run = None,
    config_dir: ConfigDir = RUNS,
    column: Columns = None,
    attempt: Annotated[
        int | None, typer.Option(help="Only this attempt and those it descends from; default: all attempts.")
    ] = None,
    lags: Annotated[bool, typer.Option("--lags", help="Every lag, not only 0 and the strongest.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Also each layer's variance, where the run's hook has measured it.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Also draw it (.png, .svg): by lag, as a scatter, the paper's Figure 1(g, h)."),
    ] = None,
    incident: Annotated[
        str | None, typer.Option(help="Instead: which signals moved first before this incident's onset.")
    ] = None,
    around: Annotated[int | None, typer.Option(help="Instead: which signals moved first before this step.")] = None,
    window: Annotated[
        int, typer.Option(min=1, help="--incident, --around: number of steps before the onset to search.")
    ] = WINDOW_STEPS,
    as_json: Json = False,
) -> int:
    """The paper's Table 3, and beside the plain coefficients prewhitened ones at lags of up to 200 samples to either
    side (positive: the signal is earlier than the loss ratio), with the effective sample size, corrected for the number
    of tests.
    """
    if incident is not None and (around is not None or paths):
        raise ConfigError("--incident names an onset of a run: pass no --around and no path with it")
    if paths and run is not None:
        raise ConfigError("pass either paths or --run, not both")
    if layers and (paths or incident is not None or around is not None):
        raise ConfigError("--layers needs a run: pass no path, --incident or --around with it")
    check_picture(plot)
    recorded = None
    if paths:
        columns = parsed_columns(column)
        series = [(str(source.path), source) for path in paths for source in open_sources(path, columns)]
    else:
        config = find_config(run, config_dir)
        series = [(config.run.name, source_of_run(config))]
        if incident is not None:
            around, attempt, recorded, window = _onset_of(config, incident, window)
    if len(series) > 1 and around is None and plot is not None:
        raise ConfigError(f"one picture shows one series, and there are {len(series)}")
    rows: list[dict[str, Any]] = []
    found: Sequence[Correlation | Departure]
    for name, source in series:
        past, of = read_past(source, ()), {"path": name} if len(series) > 1 else {}
        if around is None:
            found = _correlated(name, past, attempt, plot, every_lag=lags, layers=layers, as_json=as_json)
        else:
            moved = recorded or _moved_first(name, past, attempt, around, window)
            if not as_json:
                Console().print(_departures(f"step {around} of {name}" if of else f"step {around}", moved))
            found = moved.departures
        rows += [of | asdict(row) for row in found]
    if as_json:
        print_json(rows)
    return 0


def _onset_of(config: Config, name: str, window: int) -> tuple[int, int, FirstMoved | None, int]:
    """The late end of the incident's onset, its attempt, what moved first as recorded (None: by an older version, or
    with another window), and the steps to search."""
    found = incident_named(incident_log_of(config).read(), name)
    if found.onset_range is None:
        raise ConfigError(f"{found.id} was opened by hand and has no onset; name a step with --around")
    early, late = found.onset_range
    recorded = found.moved_first if window == WINDOW_STEPS else None
    return late, found.attempt, recorded, window + late - early


def _line_of(name: str, past: Past, attempt: int) -> list[Readings]:
    if not past.of_attempt(attempt):
        attempts = ", ".join(map(str, sorted({readings.attempt for readings in past.stretches}))) or "none"
        raise ConfigError(f"{name}: no attempt {attempt}; the attempts are {attempts}")
    return past.descent_of(attempt)


def _moved_first(name: str, past: Past, attempt: int | None, onset: int, window_steps: int) -> FirstMoved:
    """Which signals moved before the onset, on the lineage of the attempt, or of the newest."""
    if attempt is None:
        if not past.stretches:
            raise ConfigError(f"{name} has no attempt yet, so no step {onset}")
        attempt = max(readings.attempt for readings in past.stretches)
    line = _line_of(name, past, attempt)
    if not any((readings.steps == onset).any() for readings in line):
        raise ConfigError(f"{name}: attempt {attempt} and those it descends from have no step {onset}")
    return first_moved_of_readings(line, onset_step=onset, window_steps=window_steps)


def _correlated(
    name: str, past: Past, attempt: int | None, plot: Path | None, *, every_lag: bool, layers: bool, as_json: bool
) -> Sequence[Correlation]:
    """The rows of one series; drawn and printed as well, unless JSON is wanted."""
    stretches = past.stretches if attempt is None else _line_of(name, past, attempt)
    columns, steps = columns_of(stretches)
    if layers:
        measured = [one for known in past.history.attempts.values() for one in known.layers]
        if not measured:
            raise ConfigError(f"{name}: no layer was measured; the hook does it every interval_steps")
        columns = {**columns, **layer_columns(stretches, measured)}
    found = correlations(columns, steps)
    if plot is not None:
        from sentinel.reports.pictures import draw_correlation

        which = "all attempts" if attempt is None else f"attempt {attempt} and those it descends from"
        title = f"{name}: correlation with the loss ratio  ·  {which}"
        draw_correlation(found, columns, steps, title=title, path=plot)
        echo(f"wrote {plot}", err=as_json)
    rows = found.rows
    if every_lag:
        rows = (*(r for r in rows if r.method == "plain"), *(r for profile in found.profiles for r in profile.rows))
    if not as_json:
        Console().print(correlation_table(found, rows, name))
    elif found.infinite_ratios:
        echo(f"{name}: {found.infinite_ratios} steps with an infinite ratio left out", err=True)
    return rows


def correlation_table(found: Correlations, rows: Sequence[Correlation], name: str) -> Table:
    left_out = f"{found.infinite_ratios} steps with an infinite ratio left out; " if found.infinite_ratios else ""
    plain = sum(row.method == "plain" for row in found.rows)
    searched = sum(len(profile.lags) for profile in found.profiles)
    undefined = any(math.isnan(row.pearson_r) for row in rows)
    caption = (
        f"{left_out}p adjusted: for autocorrelation and (Holm) for the {plain} signals at lag 0, plain or prewhitened, "
        f"or for {searched} tests of signals and lags. "
        "At a positive lag the signal is earlier. Where both series have a trend, use the prewhitened rows."
        + " nan: one of the two does not vary, or they are too few."
        * undefined
    )
    heads = ("signal", "method", "lag", "Pearson r", "p", "n", "n effective", "p adjusted")
    title = f"{name}: loss ratio against what else was measured"
    return table(title, heads, map(_cells, rows), left=("signal", "method"), caption=caption)


def _cells(row: Correlation) -> tuple[str, ...]:
    lag, r = f"{row.lag:+d}" if row.lag else "0", f"{row.pearson_r:+.3f}"
    p, adjusted = ("nan" if math.isnan(p) else f"{p:.2g}" for p in (row.p_value, row.p_value_adjusted))
    return row.signal, row.method, lag, r, p, str(row.n), f"{row.n_effective:.0f}", adjusted


def _departures(where: str, found: FirstMoved) -> Table:
    caption = f"inside their noise band: {', '.join(found.stayed) or 'none'}"
    caption += f"; too few readings: {', '.join(found.unjudged)}" if found.unjudged else ""
    heads = ("", "signal", "first step", "steps before", "deviations")
    rows = [
        (str(rank), d.signal, str(d.first_step), str(d.steps_before_onset), f"{d.deviations:+.1f}")
        for rank, d in enumerate(found.departures, 1)
    ]
    return table(f"What moved first before {where}", heads, rows, left=("signal",), caption=caption)
