"""`compare`: two runs and more at the same step, or at the same number of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console
from rich.table import Table

from sentinel.daemon.readings import source_named
from sentinel.judge.analysis.comparison import Comparison, compare
from sentinel.judge.analysis.smoothing import smoothed
from sentinel.judge.readings import COLUMNS
from sentinel.judge.reference import Reference
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import dump_json

__all__ = ["By", "compare_runs"]

By = Literal["step", "tokens"]

_SAMPLES_PER_POINT = 16
"""Fewer than the judge's references have: the first steps are looked at, too."""

_PICTURES = (".png", ".svg")


def compare_runs(
    names: Sequence[str], columns: Mapping[str, str], config_dir: Path, *, by: By, plot: Path | None, as_json: bool
) -> int:
    """The table, the picture where one is wanted, and 0: being slower is no failure."""
    if len(names) < 2:
        raise ConfigError("compare two runs or more: paths, or names of runs")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"{twice[0]} is named twice")
    if plot is not None and plot.suffix not in _PICTURES:
        raise ConfigError(f"a picture is a {' or '.join(_PICTURES)} file, not {plot.name!r}")
    read = [_curve(name, columns, config_dir, by) for name in names]
    runs = [curve for curve, _ in read]
    notes = [f"{curve.name}: {note}" for curve, told in read for note in told]
    for note in notes:
        typer.echo(f"warning: {note}", err=True)
    found = compare(runs)
    if plot is not None:
        from sentinel.reports.chronicle.comparison_picture import draw_comparison  # matplotlib takes a while to import

        plot.parent.mkdir(parents=True, exist_ok=True)
        draw_comparison(runs, by=_axis(by), path=plot)
        typer.echo(f"wrote {plot}", err=as_json)
    if as_json:
        typer.echo(dump_json({"by": by} | asdict(found) | {"notes": notes}))
    else:
        Console().print(_table(found, by))
    return 0


def _curve(name: str, columns: Mapping[str, str], config_dir: Path, by: By) -> tuple[Reference, list[str]]:
    """The run's smoothed loss, and what has to be known of how it was read."""
    source = source_named(name, columns, config_dir)
    source.fields = (*COLUMNS, "consumed_tokens")
    axis = "consumed_tokens" if by == "tokens" else "global_step"
    curve = smoothed(name, source, by=axis, samples=_SAMPLES_PER_POINT)
    if curve.ends is None:
        what = (
            "says nothing of consumed tokens: compare by step" if by == "tokens" and source.samples else "is too short"
        )
        raise ConfigError(f"{name} {what}")
    return curve, list(source.notes)


def _table(found: Comparison, by: By) -> Table:
    table = Table(title="Loss at the same " + _axis(by), caption=_last_word(found, by))
    table.add_column(_axis(by), justify="right")
    heads = _heads(found.runs)
    for head in heads:
        table.add_column(head, justify="right", overflow="fold")
    for head in heads[1:]:
        table.add_column(f"{head} / {heads[0]}", justify="right", overflow="fold")
    for row in found.rows:
        cells = [*(_cell(loss, ".4f") for loss in row.losses), *(_cell(ratio, ".3f") for ratio in row.ratios[1:])]
        table.add_row(f"{row.at:,}", *cells)
    return table


def _heads(names: Sequence[str]) -> list[str]:
    """The names without the folders at their beginning and the parts at their end that all have: what differs."""
    parts = [Path(name).parts for name in names]
    shortest = min(len(each) for each in parts)
    first = next((i for i in range(shortest - 1) if len({each[i] for each in parts}) > 1), shortest - 1)
    last = next(
        (i for i in range(shortest - 1 - first) if len({each[-1 - i] for each in parts}) > 1), shortest - 1 - first
    )
    heads = [str(Path(*each[first : len(each) - last])) for each in parts]
    return heads if len(set(heads)) == len(names) else list(names)


def _last_word(found: Comparison, by: By) -> str:
    if not found.rows:
        return f"no two of them have a loss at the same {_axis(by)}"
    if found.leader is None:
        return "at the last place that all have, nobody leads by half a percent"
    return f"{found.leader} leads since {_axis(by)} {found.leads_since:,}, by half a percent or more at each place"


def _axis(by: By) -> str:
    return "consumed tokens" if by == "tokens" else "global step"


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
