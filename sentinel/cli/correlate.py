"""`sentinel correlate`: the paper's Table 3 with its significance, and which signal moved first before an onset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sentinel.cli.incident import incident_named
from sentinel.cli.shared import RUNS, Columns, ConfigDir, Json, Run, check_picture, parsed_columns, print_json
from sentinel.config import Config
from sentinel.daemon.run_files import find_config, incident_log_of
from sentinel.daemon.sources import history_of
from sentinel.judge.analysis.correlation.columns import columns_of, columns_of_readings, layer_columns
from sentinel.judge.analysis.correlation.table import Correlation, Correlations, correlations
from sentinel.judge.analysis.first_mover import FirstMoved, first_moved_of_readings, first_moved_of_samples
from sentinel.judge.history import History
from sentinel.judge.readings import COLUMNS, Readings, descent
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Sample


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
    ] = 100,
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
    options = _Options(attempt=attempt, every_lag=lags, layers=layers, window_steps=window, plot=plot, as_json=as_json)
    if paths:
        rows = _rows_of_paths(_sources(paths, parsed_columns(column)), around, options)
    elif incident is None and around is None:
        rows = _rows_of_run(find_config(run, config_dir), options)
    else:
        rows = _moved_first(find_config(run, config_dir), incident, around, options)
    if as_json:
        print_json(rows)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    attempt: int | None
    every_lag: bool
    layers: bool
    window_steps: int
    plot: Path | None
    as_json: bool


def _rows_of_paths(sources: Sequence[ColumnSource], around: int | None, options: _Options) -> list[dict[str, Any]]:
    """The rows of each series; with the path where there are several."""
    several = len(sources) > 1
    if several and around is None and options.plot is not None:
        raise ConfigError(f"one picture shows one series, and there are {len(sources)}")
    rows: list[dict[str, Any]] = []
    for source in sources:
        stretches = _stretches(source, options.attempt)
        if around is None:
            found = _correlated(str(source.path), *columns_of_readings(stretches), options)
        else:
            line = descent(stretches)
            if not any((stretch.steps == around).any() for stretch in line):
                raise ConfigError(f"{source.path} has no step {around} on its line of descent")
            moved = first_moved_of_readings(line, onset_step=around, window_steps=options.window_steps)
            found = _departures(f"step {around}" + f" of {source.path}" * several, moved, as_json=options.as_json)
        rows += [{"path": str(source.path)} | row for row in found] if several else found
    return rows


def _sources(paths: Sequence[Path], columns: Mapping[str, str]) -> list[ColumnSource]:
    sources = [source for path in paths for source in open_sources(path, columns)]
    for source in sources:
        source.fields = (*COLUMNS, "loss_ratio")
    return sources


def _stretches(source: ColumnSource, attempt: int | None) -> list[Readings]:
    """All readings as they were made; or an attempt's and those it descends from."""
    stretches = [readings for readings in source if len(readings)]
    if attempt is None:
        return stretches
    there = sorted({readings.attempt for readings in stretches})
    if attempt not in there:
        raise ConfigError(f"{source.path}: {_no_attempt(attempt, there)}")
    return descent([readings for readings in stretches if readings.attempt <= attempt])


def _rows_of_run(config: Config, options: _Options) -> list[dict[str, Any]]:
    history = history_of(config)
    samples = _samples(history, options.attempt)
    columns, steps = columns_of(samples)
    if options.layers:
        measured = [one for a in history.attempts.values() for one in a.layers]
        if not measured:
            raise ConfigError(f"{config.run.name}: no layer was measured; the hook does it every interval_steps")
        columns = {**columns, **layer_columns(samples, measured)}
    return _correlated(config.run.name, columns, steps, options)


def _moved_first(config: Config, incident: str | None, around: int | None, options: _Options) -> list[dict[str, Any]]:
    onset, attempt = around, options.attempt
    if incident is not None:
        found = incident_named(incident_log_of(config).read(), incident)
        if found.onset_range is None:
            raise ConfigError(f"{found.id} was opened by hand and has no onset; name a step with --around")
        onset, attempt = found.onset_range[0], found.attempt
    history = history_of(config)
    if attempt is None:
        if history.latest is None:
            raise ConfigError(f"{config.run.name} has no attempt yet, so no step {onset}")
        attempt = history.latest.number
    samples = _samples(history, attempt)
    if onset is None or not any(s.global_step == onset for s in samples):
        raise ConfigError(f"attempt {attempt} and those it descends from have no step {onset}")
    moved = first_moved_of_samples(samples, onset_step=onset, window_steps=options.window_steps)
    return _departures(f"step {onset}", moved, as_json=options.as_json)


def _samples(history: History, attempt: int | None) -> list[Sample]:
    """Samples of all attempts as they were made, or of one and those its weights descend from."""
    if attempt is None:
        return [s for a in history.attempts.values() for s in a.samples]
    if attempt not in history.attempts:
        raise ConfigError(_no_attempt(attempt, history.attempts))
    return list(history.lineage(history.attempts[attempt]))


def _no_attempt(attempt: int, there: Iterable[int]) -> str:
    return f"no attempt {attempt}; the attempts are {', '.join(map(str, there)) or 'none'}"


def _correlated(
    name: str, columns: Mapping[str, NDArray[np.float64]], steps: NDArray[np.int64], options: _Options
) -> list[dict[str, Any]]:
    """The rows of one series; drawn and printed as well, unless JSON is wanted."""
    found = correlations(columns, steps)
    if options.plot is not None:
        from sentinel.reports.pictures import draw_correlation

        attempt = options.attempt
        which = "all attempts" if attempt is None else f"attempt {attempt} and those it descends from"
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        title = f"{name}: correlation with the loss ratio  ·  {which}"
        draw_correlation(found, columns, steps, title=title, path=options.plot)
        typer.echo(f"wrote {options.plot}", err=options.as_json)
    rows = [row for row in found.rows if row.method == "plain"] if options.every_lag else list(found.rows)
    if options.every_lag:
        rows += [row for profile in found.profiles for row in profile.rows]
    if not options.as_json:
        Console().print(correlation_table(found, rows, name))
    elif found.infinite_ratios:
        typer.echo(f"{name}: {found.infinite_ratios} steps with an infinite ratio left out", err=True)
    return [asdict(row) for row in rows]


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
    table = Table(title=f"{name}: loss ratio against what else was measured", caption=caption)
    table.add_column("signal", overflow="fold")  # layers' names differ at their end
    table.add_column("method")
    for heading in ("lag", "Pearson r", "p", "n", "n effective", "p adjusted"):
        table.add_column(heading, justify="right")
    for row in rows:
        lag = f"{row.lag:+d}" if row.lag else "0"
        p, adjusted = ("nan" if math.isnan(p) else f"{p:.2g}" for p in (row.p_value, row.p_value_adjusted))
        n_effective = f"{row.n_effective:.0f}"
        table.add_row(row.signal, row.method, lag, f"{row.pearson_r:+.3f}", p, str(row.n), n_effective, adjusted)
    return table


def _departures(where: str, found: FirstMoved, *, as_json: bool) -> list[dict[str, Any]]:
    if not as_json:
        caption = f"inside their noise band: {', '.join(found.stayed) or 'none'}"
        caption += f"; too few readings: {', '.join(found.unjudged)}" if found.unjudged else ""
        table = Table(title=f"What moved first before {where}", caption=caption)
        for heading in ("", "signal", "first step", "steps before", "deviations"):
            table.add_column(heading, justify="left" if heading == "signal" else "right")
        for rank, d in enumerate(found.departures, 1):
            table.add_row(str(rank), d.signal, str(d.first_step), str(d.steps_before_onset), f"{d.deviations:+.1f}")
        Console().print(table)
    return [asdict(departure) for departure in found.departures]
