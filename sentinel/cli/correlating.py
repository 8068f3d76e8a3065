"""`correlate`: Table 3 with what is left of it, its picture, and which signal moved first around an onset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from sentinel.act.source import read_all
from sentinel.cli import wiring
from sentinel.cli.chronicling import named
from sentinel.config import Config
from sentinel.judge.correlation import Correlation, Correlations
from sentinel.judge.history import History
from sentinel.plan.incident import fold
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json
from sentinel.vocabulary.sample import Sample

__all__ = ["Around", "correlate", "correlation_table", "moved_first"]

_PICTURES = (".png", ".svg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Which onset to look before: an incident's, or a step."""

    incident: str | None = None
    step: int | None = None
    window_steps: int


def correlate(config: Config, *, attempt: int | None, every_lag: bool, plot: Path | None, as_json: bool) -> int:
    """The paper's Table 3 for this run, and beside it what trend, memory and the number of looks leave of it."""
    from sentinel.judge.correlation import columns_of, correlations

    if plot is not None and plot.suffix not in _PICTURES:
        raise ConfigError(f"a picture is a {' or '.join(_PICTURES)} file, not {plot.name!r}")
    columns, steps = columns_of(_samples(_history(config), attempt))
    found = correlations(columns, steps)
    if plot is not None:
        from sentinel.chronicle.correlation_picture import draw_correlation  # matplotlib takes a while to import

        which = "all attempts" if attempt is None else f"attempt {attempt} and what it descends from"
        plot.parent.mkdir(parents=True, exist_ok=True)
        draw_correlation(
            found, columns, steps, title=f"{config.run.name}: what the loss ratio goes with  ·  {which}", path=plot
        )
        typer.echo(f"wrote {plot}", err=as_json)
    shown = [row for row in found.rows if row.method == "plain"] if every_lag else list(found.rows)
    if every_lag:
        shown += [row for profile in found.profiles for row in profile.rows]
    if as_json:
        typer.echo(dump_json([asdict(row) for row in shown]))
        if found.infinite_ratios:
            typer.echo(f"{found.infinite_ratios} steps with an infinite ratio left out", err=True)
        return 0
    Console().print(correlation_table(found, shown))
    return 0


def moved_first(config: Config, around: Around, *, attempt: int | None, as_json: bool) -> int:
    """Which signals left their own noise before the onset, the earliest first."""
    from sentinel.judge.first_moved import first_moved_of_samples

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
    if as_json:
        typer.echo(dump_json([asdict(departure) for departure in found.departures]))
        return 0
    table = Table(title=f"What moved first before step {onset}", caption=_left_over(found.stayed, found.unjudged))
    for heading in ("", "signal", "first step", "steps before", "deviations"):
        table.add_column(heading, justify="left" if heading == "signal" else "right")
    for rank, d in enumerate(found.departures, 1):
        table.add_row(str(rank), d.signal, str(d.first_step), str(d.steps_before_onset), f"{d.deviations:+.1f}")
    Console().print(table)
    return 0


def correlation_table(found: Correlations, rows: Sequence[Correlation] | None = None) -> Table:
    """Table 3, with how far to trust it."""
    table = Table(title="Loss ratio against what else was measured", caption=_caption(found))
    for heading in ("signal", "method", "lag", "Pearson r", "p", "n", "n effective", "p adjusted"):
        table.add_column(heading, justify="left" if heading in ("signal", "method") else "right")
    for row in found.rows if rows is None else rows:
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
        raise ConfigError(f"there is no attempt {attempt}; there is {', '.join(map(str, history.attempts)) or 'none'}")
    return history.lineage(history.attempts[attempt])


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
