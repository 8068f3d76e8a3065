"""`sentinel correlate`: the paper's Table 3 with its significance, and which signal moved first before an onset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sentinel.cli.incident import incident_named
from sentinel.cli.options import RUNS, Columns, ConfigDir, Json, Run, parsed_columns
from sentinel.cli.output import check_picture, print_json, to_stderr
from sentinel.daemon.run_files import find_config, incident_log_of, state_dir_of
from sentinel.judge.history import History
from sentinel.plan.incident_events import fold
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sentinel.config import Config
    from sentinel.judge.analysis.correlation.table import Correlation, Correlations
    from sentinel.judge.analysis.first_mover import FirstMoved
    from sentinel.judge.readings import Readings
    from sentinel.sources.column_source import ColumnSource

__all__ = ["correlate", "correlation_table"]


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
    shown = _Shown(every_lag=lags, layers=layers, plot=plot, as_json=as_json)
    if paths:
        sources = _sources(paths, parsed_columns(column))
        if around is None:
            rows = _correlate_paths(sources, shown, attempt)
        else:
            rows = _moved_first_in_paths(sources, around, window, attempt, as_json=as_json)
    else:
        config = find_config(run, config_dir)
        if incident is None and around is None:
            rows = _correlate_run(config, shown, attempt)
        else:
            onset, attempt = (around, attempt) if incident is None else _onset_of(config, incident)
            rows = _moved_first(_history(config), onset, window, attempt, as_json=as_json)
    if as_json:
        print_json(rows)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    every_lag: bool
    layers: bool
    plot: Path | None
    as_json: bool


def _correlate_run(config: Config, shown: _Shown, attempt: int | None) -> list[dict[str, Any]]:
    from sentinel.judge.analysis.correlation.columns import columns_of, layer_columns

    history = _history(config)
    samples = _samples(history, attempt)
    columns, steps = columns_of(samples)
    if shown.layers:
        measured = [one for a in history.attempts.values() for one in a.layers]
        if not measured:
            raise ConfigError(f"{config.run.name}: no layer was measured; the hook does it every interval_steps")
        columns = {**columns, **layer_columns(samples, measured)}
    return _answer(config.run.name, columns, steps, shown, attempt=attempt)


def _correlate_paths(sources: Sequence[ColumnSource], shown: _Shown, attempt: int | None) -> list[dict[str, Any]]:
    """The rows of each series; with the path where there are several."""
    from sentinel.judge.analysis.correlation.columns import columns_of_readings

    if shown.plot is not None and len(sources) > 1:
        raise ConfigError(f"one picture shows one series, and there are {len(sources)}")
    rows: list[dict[str, Any]] = []
    for source in sources:
        found = _answer(str(source.path), *columns_of_readings(_stretches(source, attempt)), shown, attempt=attempt)
        rows += [{"path": str(source.path)} | row for row in found] if len(sources) > 1 else found
    return rows


def _onset_of(config: Config, name: str) -> tuple[int, int]:
    """The early end of the incident's onset, and its attempt."""
    incident = incident_named(fold(incident_log_of(config).read()), name)
    if incident.onset_range is None:
        raise ConfigError(f"{incident.id} was opened by hand and has no onset; name a step with --around")
    return incident.onset_range[0], incident.attempt


def _moved_first(
    history: History, onset: int | None, window_steps: int, attempt: int | None, *, as_json: bool
) -> list[dict[str, Any]]:
    """The signals that left their noise band before the onset, the earliest first."""
    from sentinel.judge.analysis.first_mover import first_moved_of_samples

    latest = history.latest
    number = attempt if attempt is not None else latest.number if latest is not None else None
    samples = [] if number is None else _samples(history, number)
    if onset is None or not any(s.global_step == onset for s in samples):
        raise ConfigError(f"attempt {number} and those it descends from have no step {onset}")
    found = first_moved_of_samples(samples, onset_step=onset, window_steps=window_steps)
    return _departures(f"step {onset}", found, as_json=as_json)


def _moved_first_in_paths(
    sources: Sequence[ColumnSource], onset: int, window_steps: int, attempt: int | None, *, as_json: bool
) -> list[dict[str, Any]]:
    """The same of each series that the paths hold, on its line of descent."""
    from sentinel.judge.analysis.first_mover import first_moved_of_readings
    from sentinel.judge.readings import descent

    rows: list[dict[str, Any]] = []
    for source in sources:
        line = descent(_stretches(source, attempt))
        if not any((stretch.steps == onset).any() for stretch in line):
            raise ConfigError(f"{source.path} has no step {onset} on its line of descent")
        found = first_moved_of_readings(line, onset_step=onset, window_steps=window_steps)
        several = len(sources) > 1
        moved = _departures(f"step {onset}" + f" of {source.path}" * several, found, as_json=as_json)
        rows += [{"path": str(source.path)} | row for row in moved] if several else moved
    return rows


def correlation_table(found: Correlations, rows: Sequence[Correlation], name: str) -> Table:
    """Table 3, with the significance of each coefficient."""
    table = Table(title=f"{name}: loss ratio against what else was measured", caption=_caption(found))
    for heading in ("signal", "method", "lag", "Pearson r", "p", "n", "n effective", "p adjusted"):
        table.add_column(
            heading,
            justify="left" if heading in ("signal", "method") else "right",
            overflow="fold" if heading == "signal" else "ellipsis",  # layers' names differ at their end
        )
    for row in rows:
        table.add_row(
            row.signal,
            row.method,
            f"{row.lag:+d}" if row.lag else "0",
            f"{row.pearson_r:+.3f}",
            _p(row.p_value),
            str(row.n),
            f"{row.n_effective:.0f}",
            _p(row.p_value_adjusted),
        )
    return table


def _answer(
    name: str,
    columns: Mapping[str, NDArray[np.float64]],
    steps: NDArray[np.int64],
    shown: _Shown,
    *,
    attempt: int | None,
) -> list[dict[str, Any]]:
    """The rows of one series; drawn and printed as well, unless JSON is wanted."""
    from sentinel.judge.analysis.correlation.table import correlations

    found = correlations(columns, steps)
    if shown.plot is not None:
        from sentinel.reports.chronicle.correlation_picture import draw_correlation

        which = "all attempts" if attempt is None else f"attempt {attempt} and those it descends from"
        shown.plot.parent.mkdir(parents=True, exist_ok=True)
        title = f"{name}: correlation with the loss ratio  ·  {which}"
        draw_correlation(found, columns, steps, title=title, path=shown.plot)
        typer.echo(f"wrote {shown.plot}", err=shown.as_json)
    rows = [row for row in found.rows if row.method == "plain"] if shown.every_lag else list(found.rows)
    if shown.every_lag:
        rows += [row for profile in found.profiles for row in profile.rows]
    if not shown.as_json:
        Console().print(correlation_table(found, rows, name))
    elif found.infinite_ratios:
        to_stderr(f"{name}: {found.infinite_ratios} steps with an infinite ratio left out")
    return [asdict(row) for row in rows]


def _departures(where: str, found: FirstMoved, *, as_json: bool) -> list[dict[str, Any]]:
    if not as_json:
        table = Table(title=f"What moved first before {where}", caption=_stayed(found.stayed, found.unjudged))
        for heading in ("", "signal", "first step", "steps before", "deviations"):
            table.add_column(heading, justify="left" if heading == "signal" else "right")
        for rank, d in enumerate(found.departures, 1):
            table.add_row(str(rank), d.signal, str(d.first_step), str(d.steps_before_onset), f"{d.deviations:+.1f}")
        Console().print(table)
    return [asdict(departure) for departure in found.departures]


def _sources(paths: Sequence[Path], columns: Mapping[str, str]) -> list[ColumnSource]:
    from sentinel.judge.readings import COLUMNS
    from sentinel.sources.opening import open_sources

    sources = [source for path in paths for source in open_sources(path, columns)]
    for source in sources:
        source.fields = (*COLUMNS, "loss_ratio")
    return sources


def _stretches(source: ColumnSource, attempt: int | None) -> list[Readings]:
    """All readings as they were made; or an attempt's and those it descends from."""
    from sentinel.judge.readings import descent

    stretches = [readings for readings in source if len(readings)]
    if attempt is None:
        return stretches
    there = sorted({readings.attempt for readings in stretches})
    if attempt not in there:
        raise ConfigError(f"{source.path}: {_no_attempt(attempt, there)}")
    return descent([readings for readings in stretches if readings.attempt <= attempt])


def _no_attempt(attempt: int, there: Iterable[int]) -> str:
    return f"no attempt {attempt}; the attempts are {', '.join(map(str, there)) or 'none'}"


def _history(config: Config) -> History:
    from sentinel.act.source import read_all
    from sentinel.daemon.sources import source_of

    history = History()
    for record in read_all(source_of(config, state_dir_of(config))):
        history.push(record)
    return history


def _samples(history: History, attempt: int | None) -> list[Sample]:
    """Samples of all attempts as they were made, or of one and those its weights descend from."""
    if attempt is None:
        return [s for a in history.attempts.values() for s in a.samples]
    if attempt not in history.attempts:
        raise ConfigError(_no_attempt(attempt, history.attempts))
    return list(history.lineage(history.attempts[attempt]))


def _caption(found: Correlations) -> str:
    left_out = f"{found.infinite_ratios} steps with an infinite ratio left out; " if found.infinite_ratios else ""
    plain = sum(row.method == "plain" for row in found.rows)
    searched = sum(len(profile.lags) for profile in found.profiles)
    return (
        f"{left_out}p adjusted: for autocorrelation and for {plain} plain tests or {searched} prewhitened ones (Holm). "
        "At a positive lag the signal is earlier. Where both series have a trend, use the prewhitened rows."
    )


def _stayed(stayed: Sequence[str], unjudged: Sequence[str]) -> str:
    inside = f"inside their noise band: {', '.join(stayed) or 'none'}"
    return inside + (f"; too few readings: {', '.join(unjudged)}" if unjudged else "")


def _p(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value:.2g}"
