"""`correlate`: Table 3 with what is left of it, its picture, and which signal moved first around an onset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from sentinel.act.source import read_all
from sentinel.cli.chronicling import named
from sentinel.config import Config
from sentinel.daemon import wiring
from sentinel.judge.analysis.correlation.table import Correlation, Correlations
from sentinel.judge.history import History
from sentinel.judge.readings import COLUMNS, Readings, descent
from sentinel.plan.incident_fold import fold
from sentinel.sources.column_source import ColumnSource
from sentinel.sources.opening import open_sources
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sentinel.judge.analysis.first_mover import FirstMoved

__all__ = [
    "Around",
    "Shown",
    "correlate_paths",
    "correlate_run",
    "correlation_table",
    "moved_first",
    "moved_first_in_paths",
]

_PICTURES = (".png", ".svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Which onset to look before: an incident's, or a step."""

    incident: str | None = None
    step: int | None = None
    window_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How the answer is wanted."""

    every_lag: bool = False
    layers: bool = False
    plot: Path | None = None
    as_json: bool = False


def correlate_run(config: Config, shown: Shown, *, attempt: int | None) -> int:
    """The paper's Table 3 for this run, and beside it what trend, memory and the number of looks leave of it."""
    from sentinel.judge.analysis.correlation.columns import columns_of, layer_columns

    _check(shown.plot)
    history = _history(config)
    samples = _samples(history, attempt)
    columns, steps = columns_of(samples)
    if shown.layers:
        measured = [one for a in history.attempts.values() for one in a.layers]
        if not measured:
            raise ConfigError(f"{config.run.name}: no layer was measured; the hook does it every interval_steps")
        columns = {**columns, **layer_columns(samples, measured)}
    rows = _answer(config.run.name, columns, steps, shown, attempt=attempt)
    if shown.as_json:
        typer.echo(dump_json(rows))
    return 0


def correlate_paths(paths: Sequence[Path], columns: Mapping[str, str], shown: Shown, *, attempt: int | None) -> int:
    """The same of each series that the paths hold."""
    from sentinel.judge.analysis.correlation.columns import columns_of_readings

    _check(shown.plot)
    sources = _sources(paths, columns)
    if shown.plot is not None and len(sources) > 1:
        raise ConfigError(f"one picture is of one series, and there are {len(sources)}")
    rows: list[dict[str, Any]] = []
    for source in sources:
        found = _answer(str(source.path), *columns_of_readings(_stretches(source, attempt)), shown, attempt=attempt)
        rows += [{"path": str(source.path)} | row for row in found] if len(sources) > 1 else found
    if shown.as_json:
        typer.echo(dump_json(rows))
    return 0


def moved_first(config: Config, around: Around, *, attempt: int | None, as_json: bool) -> int:
    """Which signals left their own noise before the onset, the earliest first."""
    from sentinel.judge.analysis.first_mover import first_moved_of_samples

    history, onset = _history(config), around.step
    if around.incident is not None:
        incident = named(fold(wiring.neighbours_of(config).incident_log.read()), around.incident)
        if incident.onset_range is None:
            raise ConfigError(f"{incident.id} was opened by hand and has no onset; name a step with --around")
        onset, attempt = incident.onset_range[0], incident.attempt
    if onset is None:
        raise ConfigError("an onset is needed: --incident or --around")
    latest = history.latest
    number = attempt if attempt is not None else latest.number if latest is not None else None
    samples = [] if number is None else _samples(history, number)
    if not any(s.global_step == onset for s in samples):
        raise ConfigError(f"attempt {number} has no step {onset}, and nor has what it descends from")
    found = first_moved_of_samples(samples, onset_step=onset, window_steps=around.window_steps)
    rows = _departures(f"step {onset}", found, as_json=as_json)
    if as_json:
        typer.echo(dump_json(rows))
    return 0


def moved_first_in_paths(
    paths: Sequence[Path],
    columns: Mapping[str, str],
    onset: int,
    *,
    window_steps: int,
    attempt: int | None,
    as_json: bool,
) -> int:
    """The same of each series that the paths hold, on its line of descent."""
    from sentinel.judge.analysis.first_mover import first_moved_of_readings

    sources = _sources(paths, columns)
    rows: list[dict[str, Any]] = []
    for source in sources:
        line = descent(_stretches(source, attempt))
        if not any((stretch.steps == onset).any() for stretch in line):
            raise ConfigError(f"{source.path} has no step {onset} on its line of descent")
        found = first_moved_of_readings(line, onset_step=onset, window_steps=window_steps)
        several = len(sources) > 1
        told = _departures(f"step {onset}" + f" of {source.path}" * several, found, as_json=as_json)
        rows += [{"path": str(source.path)} | row for row in told] if several else told
    if as_json:
        typer.echo(dump_json(rows))
    return 0


def correlation_table(found: Correlations, rows: Sequence[Correlation], name: str) -> Table:
    """Table 3, with how far to trust it."""
    table = Table(title=f"{name}: loss ratio against what else was measured", caption=_caption(found))
    for heading in ("signal", "method", "lag", "Pearson r", "p", "n", "n effective", "p adjusted"):
        table.add_column(
            heading,
            justify="left" if heading in ("signal", "method") else "right",
            overflow="fold" if heading == "signal" else "ellipsis",  # a layer's name ends in what tells it apart
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
    shown: Shown,
    *,
    attempt: int | None,
) -> list[dict[str, Any]]:
    """The rows of one series; drawn and printed as well, unless JSON is wanted."""
    from sentinel.judge.analysis.correlation.table import correlations

    found = correlations(columns, steps)
    if shown.plot is not None:
        from sentinel.reports.chronicle.correlation_picture import (
            draw_correlation,  # matplotlib takes a while to import
        )

        which = "all attempts" if attempt is None else f"attempt {attempt} and what it descends from"
        shown.plot.parent.mkdir(parents=True, exist_ok=True)
        title = f"{name}: what the loss ratio goes with  ·  {which}"
        draw_correlation(found, columns, steps, title=title, path=shown.plot)
        typer.echo(f"wrote {shown.plot}", err=shown.as_json)
    rows = [row for row in found.rows if row.method == "plain"] if shown.every_lag else list(found.rows)
    if shown.every_lag:
        rows += [row for profile in found.profiles for row in profile.rows]
    if not shown.as_json:
        Console().print(correlation_table(found, rows, name))
    elif found.infinite_ratios:
        typer.echo(f"{name}: {found.infinite_ratios} steps with an infinite ratio left out", err=True)
    return [asdict(row) for row in rows]


def _departures(where: str, found: FirstMoved, *, as_json: bool) -> list[dict[str, Any]]:
    if not as_json:
        table = Table(title=f"What moved first before {where}", caption=_left_over(found.stayed, found.unjudged))
        for heading in ("", "signal", "first step", "steps before", "deviations"):
            table.add_column(heading, justify="left" if heading == "signal" else "right")
        for rank, d in enumerate(found.departures, 1):
            table.add_row(str(rank), d.signal, str(d.first_step), str(d.steps_before_onset), f"{d.deviations:+.1f}")
        Console().print(table)
    return [asdict(departure) for departure in found.departures]


def _check(plot: Path | None) -> None:
    if plot is not None and plot.suffix not in _PICTURES:
        raise ConfigError(f"a picture is a {' or '.join(_PICTURES)} file, not {plot.name!r}")


def _sources(paths: Sequence[Path], columns: Mapping[str, str]) -> list[ColumnSource]:
    sources = [source for path in paths for source in open_sources(path, columns)]
    for source in sources:
        source.fields = (*COLUMNS, "loss_ratio")
    return sources


def _stretches(source: ColumnSource, attempt: int | None) -> list[Readings]:
    """All that were made, as they were; or an attempt's and what it descends from."""
    stretches = [readings for readings in source if len(readings)]
    if attempt is None:
        return stretches
    there = sorted({readings.attempt for readings in stretches})
    if attempt not in there:
        raise ConfigError(f"{source.path}: {_no_attempt(attempt, there)}")
    return descent([readings for readings in stretches if readings.attempt <= attempt])


def _no_attempt(attempt: int, there: Iterable[int]) -> str:
    return f"there is no attempt {attempt}; there is {', '.join(map(str, there)) or 'none'}"


def _history(config: Config) -> History:
    history = History()
    for record in read_all(wiring.neighbours_of(config).source):
        history.push(record)
    return history


def _samples(history: History, attempt: int | None) -> list[Sample]:
    """Of all attempts as they were made, or of one and what its weights descend from."""
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
        "A positive lag has the signal earlier. Only prewhitened rows say anything where both series have a trend."
    )


def _left_over(stayed: Sequence[str], unjudged: Sequence[str]) -> str:
    inside = f"inside their noise: {', '.join(stayed) or 'none'}"
    return inside + (f"; too few readings to say: {', '.join(unjudged)}" if unjudged else "")


def _p(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value:.2g}"
