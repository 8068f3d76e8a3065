"""`sentinel compare`: runs at the same step, or at the same number of tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from sentinel.cli.shared import RUNS, Columns, ConfigDir, Json, check_picture, echo, parsed_columns, print_json, table
from sentinel.daemon.sources import source_named
from sentinel.judge import reference
from sentinel.judge.readings import COLUMNS
from sentinel.judge.reference import Comparison, Reference, smoothed
from sentinel.vocabulary.errors import ConfigError

By = Literal["step", "tokens"]
_AXES: dict[By, str] = {"step": "global step", "tokens": "consumed tokens"}

_SAMPLES_PER_POINT = 16  # fewer than the judge's references have: the first steps are compared too


def compare(
    runs: Annotated[list[str], typer.Argument(help="Two or more: readings as `replay` takes them, or names of runs.")],
    by: Annotated[By, typer.Option(help="Compare at equal steps or at equal consumed tokens.")] = "step",
    column: Columns = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it: a .png or .svg file.")] = None,
    config_dir: ConfigDir = RUNS,
    as_json: Json = False,
) -> int:
    """Shows the smoothed loss of each run, the ratio to the first, and which run leads since when."""
    if len(runs) < 2:
        raise ConfigError("compare needs two runs or more: paths, or names of runs")
    if twice := [name for name, times in Counter(runs).items() if times > 1]:
        raise ConfigError(f"{twice[0]} is named twice")
    check_picture(plot)
    columns = parsed_columns(column)
    read = [_curve(name, columns, config_dir, by) for name in runs]
    curves = [curve for curve, _ in read]
    notes = [f"{curve.name}: {note}" for curve, found in read for note in found]
    for note in notes:
        echo(f"warning: {note}", err=True)
    compared = reference.compare(curves)
    if plot is not None:
        from sentinel.reports.pictures import draw_comparison

        draw_comparison(curves, by=_AXES[by], path=plot)
        echo(f"wrote {plot}", err=as_json)
    if as_json:
        print_json({"by": by} | asdict(compared) | {"notes": notes})
    else:
        Console().print(_table(compared, _AXES[by]))
    return 0


def _curve(name: str, columns: Mapping[str, str], config_dir: Path, by: By) -> tuple[Reference, list[str]]:
    """The run's smoothed loss, and the notes of its reader."""
    source = source_named(name, columns, config_dir)
    source.fields = (*COLUMNS, "consumed_tokens")
    axis = "consumed_tokens" if by == "tokens" else "global_step"
    curve = smoothed(name, source, by=axis, samples=_SAMPLES_PER_POINT)
    if curve.ends is None:
        if by == "tokens" and source.samples:
            raise ConfigError(f"{name} has no consumed tokens: compare by step")
        needed = f"compare needs {_SAMPLES_PER_POINT // 2} or more with a loss"
        raise ConfigError(f"{needed}, and {name} has {source.count}")
    return curve, list(source.notes)


def _table(found: Comparison, axis: str) -> Table:
    if not found.rows:
        caption = f"no two runs have a loss at the same {axis}"
    elif found.leader is None:
        caption = f"no run leads by half a percent at the last {axis} that all have"
    else:
        caption = f"{found.leader} leads since {axis} {found.leads_since:,}, by half a percent or more in each row"
    heads = _heads(found.runs)
    rows = [
        (
            f"{row.at:,}",
            *("" if loss is None else f"{loss:.4f}" for loss in row.losses),
            *("" if ratio is None else f"{ratio:.3f}" for ratio in row.ratios[1:]),
        )
        for row in found.rows
    ]
    columns = (axis, *heads, *(f"{head} / {heads[0]}" for head in heads[1:]))
    return table(f"Loss at the same {axis}", columns, rows, caption=caption)


def _heads(names: Sequence[str]) -> list[str]:
    """The names without the first and last parts of the paths that all have in common."""
    parts = [Path(name).parts for name in names]
    most = min(len(each) for each in parts) - 1
    first = next((i for i in range(most) if len({each[i] for each in parts}) > 1), most)
    last = next((i for i in range(most - first) if len({each[-1 - i] for each in parts}) > 1), most - first)
    heads = [str(Path(*each[first : len(each) - last])) for each in parts]
    return heads if len(set(heads)) == len(names) else list(names)
